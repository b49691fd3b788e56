"""Several processes on one port and one file: started, replaced and stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.server.test_serve import COMMAND, environment, serving
from tests.support.lives import children
from waystation.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < limit, "it does not come to pass"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_they_answer_as_one_and_stop_together(tmp_path: Path) -> None:
    with serving(tmp_path, "--processes", "2") as server:
        assert server.greeting.count("is at") == 1
        pids = children(server.process.pid)
        assert len(pids) == 2
        for _ in range(10):
            assert server.get("/healthz") == {"status": "ok"}
        assert server.stop() == 0
        assert not any(map(alive, pids))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["who writes", "who answers", "who answers, too"])
def test_one_that_is_killed_is_replaced(tmp_path: Path, which: int) -> None:
    with serving(tmp_path, "--processes", "3") as server:
        before = children(server.process.pid)
        os.kill(before[which], signal.SIGKILL)
        until(lambda: len(set(children(server.process.pid)) - set(before)) == 1)
        assert server.get("/healthz") == {"status": "ok"}
        assert server.stop() == 0


def test_they_do_not_outlive_the_one_that_watches(tmp_path: Path) -> None:
    with serving(tmp_path, "--processes", "2") as server:
        pids = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", ["0", "-1", "x", "65"])
def test_a_number_that_makes_no_sense(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--processes", number])
    assert left.value.code == 2
    assert "from 1 to 64" in capsys.readouterr().err


def test_one_that_cannot_start_ends_everything(tmp_path: Path) -> None:
    bad = {"WAYSTATION_STORE": f"sqlite:///{tmp_path}/nowhere/at/all.db"}
    command = [*COMMAND, "serve", "--port", "0", "--processes", "2"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(**bad), capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1


def test_a_stop_during_the_start_is_heeded(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "--port", "0", "--processes", "4"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: bool(children(process.pid)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
