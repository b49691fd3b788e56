"""Other people's programs: wrk sends, nginx receives, and neither takes much of the machine from
what is measured."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = float(os.environ.get("BENCH_SECONDS", "3"))
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_BAD = re.compile(r"(Non-2xx or 3xx responses: \d+|Socket errors: .*)")
_STILL_SECONDS = 0.3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*command: str, port: int, **more: Any) -> Iterator[int]:
    """A program that listens on a port, until the end of the block."""
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more
    )
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 0.1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} did not start")
        yield port
    finally:
        started.terminate()
        started.wait()


def wrk(url: str, connections: int, *options: str) -> float:
    """Requests a second; `options` as on its command line."""
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS:g}s", *options, url],
        capture_output=True,
        text=True,
        check=True,
    )
    if found := _BAD.search(done.stdout):
        raise RuntimeError(f"{url}: {found[1]}")
    rate = _RATE.search(done.stdout)
    assert rate is not None, done.stdout
    return float(rate[1])


def posting(home: Path, size: int) -> list[str]:
    """Options with which wrk posts JSON of about so many bytes."""
    script = home / "post.lua"
    script.write_text(
        f"""wrk.method = "POST"
        wrk.headers["Content-Type"] = "application/json"
        wrk.body = '{{"text": "' .. string.rep("x", {size - 12}) .. '"}}'"""
    )
    return ["-s", str(script)]


class Sink:
    """An nginx that says 200 to everything."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self._asked = 0

    def count(self) -> int:
        """How many requests it has answered, but for these."""
        self._asked += 1
        with urllib.request.urlopen(f"{self.url}status", timeout=10) as answer:
            return int(answer.read().split()[9]) - self._asked

    def settled(self) -> tuple[int, float]:
        """How many, once no more come, and when the last one came."""
        count, at = self.count(), time.monotonic()
        while time.monotonic() - at < _STILL_SECONDS:
            time.sleep(0.005)
            if (now := self.count()) != count:
                count, at = now, time.monotonic()
        return count, at


@contextmanager
def sink(home: Path) -> Iterator[Sink]:
    home.chmod(0o755)  # nginx's worker is another user
    port = free_port()
    config = home / "sink.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {home}/sink.pid; error_log {home}/sink.log;
        events {{ worker_connections 4096; }}
        http {{
          access_log off; keepalive_requests 1000000000;
          client_body_temp_path {home}/s1; proxy_temp_path {home}/s2; fastcgi_temp_path {home}/s3;
          uwsgi_temp_path {home}/s4; scgi_temp_path {home}/s5;
          server {{ listen 127.0.0.1:{port};
            location / {{ return 200; }} location /status {{ stub_status; }} }} }}"""
    )
    with process("nginx", "-c", str(config), "-p", str(home), port=port):
        yield Sink(port)
