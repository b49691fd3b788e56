"""The product as a process: started, used, stopped, killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.support.dynamodb_local import free_port
from waystation.errors import SettingsError
from waystation.seam import Running, System
from waystation.server.inside import check_uvicorn
from waystation.server.serve import serve
from waystation.settings import Settings
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "waystation.cli"]


class Process:
    """`waystation serve`, and what it printed when it was ready."""

    def __init__(self, process: subprocess.Popen[str], greeting: str) -> None:
        self.process = process
        self.greeting = greeting
        found = re.search(r"is at (http://\S+)", greeting)
        assert found, greeting
        self.url = found[1]

    def get(self, path: str, token: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: object) -> int:
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYSTATION_")}
    return {**kept, **more}


@contextmanager
def serving(where: Path, *options: str, **settings: str) -> Iterator[Process]:
    with (where / "log").open("a") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *options],
            cwd=where,
            env=environment(**settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or not lines[-1].strip().startswith("stored in"):
                line = process.stdout.readline()
                assert line, (where / "log").read_text()
                lines.append(line)
            yield Process(process, "".join(lines))
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def make_key(where: Path, email: str = "ann@example.com", *more: str) -> str:
    created = subprocess.run(
        [*COMMAND, "keys", "create", email, *more],
        cwd=where,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return created.stdout


def test_it_starts_with_nothing_and_says_where_to_go(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert f"{server.url}/docs" in server.greeting
        assert "keys create" in server.greeting
        assert server.get("/readyz")["status"] == "ready"
        key = make_key(tmp_path)
        assert re.fullmatch(r"ws_live_[\w-]{32}\n", key)
        me = server.get("/v1/me", key.strip())
        assert (me["email"], me["plan"]) == ("ann@example.com", "unlimited")
        assert (tmp_path / "waystation.db").exists()
        assert (tmp_path / "waystation.key").stat().st_mode & 0o777 == 0o600


def test_it_stops_when_told_to_and_finishes_what_was_begun(tmp_path: Path) -> None:
    """A sign-up takes a quarter of a second of hashing: time to be told to stop meanwhile."""
    with serving(tmp_path) as server:
        statuses: list[int] = []
        account = {"email": "ann@example.com", "password": "correct horse", "name": "Ann"}

        def sign_up() -> None:
            statuses.append(server.post("/v1/auth/signup", account))

        caller = threading.Thread(target=sign_up)
        caller.start()
        time.sleep(0.1)
        assert server.stop() == 0
        caller.join()
        assert statuses == [201]


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """Killed the moment an account was acknowledged, three times."""
    accounts = [
        {"email": f"u{n}@example.com", "password": "correct horse", "name": "U"} for n in range(3)
    ]
    for account in accounts:
        with serving(tmp_path) as server:
            assert server.post("/v1/auth/signup", account) == 201
            server.process.kill()
    with serving(tmp_path) as server:
        for account in accounts:
            signed_in = {name: account[name] for name in ("email", "password")}
            assert server.post("/v1/auth/login", signed_in) == 200


def test_told_twice_it_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        parts = urlsplit(server.url)
        assert parts.port is not None
        with socket.create_connection((parts.hostname, parts.port)) as caller:
            caller.sendall(b"POST /v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.1)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(10) == 0


def test_roles(tmp_path: Path) -> None:
    with serving(tmp_path, "--role", "worker") as worker, serving(tmp_path, "--role", "api") as api:
        jobs = [job["name"] for job in worker.get("/readyz")["jobs"]]
        assert sorted(jobs) == [
            *("desk-archive", "desk-events", "desk-redrive", "inbox", "pages sweep", "queues"),
            *("relay", "relay-received", "sweep", "watch inbox"),
        ]
        assert api.get("/readyz")["jobs"] == []
        with pytest.raises(urllib.error.HTTPError) as refused:
            worker.get("/v1/me")
        assert refused.value.code == 404
        refused.value.close()
        assert api.get("/v1/me", make_key(tmp_path).strip())["email"] == "ann@example.com"


def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        port = server.url.rpartition(":")[2]
        second = subprocess.run(
            [*COMMAND, "serve", "--port", port],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert second.returncode == 1
    assert f"port {port}" in second.stderr
    assert "Traceback" not in second.stderr


def test_it_runs_on_stand_ins_for_aws(tmp_path: Path, dynamodb_url: str, moto_url: str) -> None:
    settings = {
        "WAYSTATION_STORE": "dynamodb://eu-west-1",
        "WAYSTATION_QUEUE": "sqs://eu-west-1",
        "WAYSTATION_BLOBS": "memory:///",
        "WAYSTATION_SECRET_KEY": "k" * 40,
        "WAYSTATION_ENV": f"t{free_port()}",
        "WAYSTATION_AWS_ENDPOINT_URL": moto_url,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url,
    }
    account = {"email": "ann@example.com", "password": "correct horse", "name": "Ann"}
    with serving(tmp_path, **settings) as server:
        assert server.get("/readyz")["status"] == "ready"
        assert server.post("/v1/auth/signup", account) == 201
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/v1/auth/signup", account)
        assert refused.value.code == 409
        refused.value.close()
        assert server.stop() == 0


def test_logs_are_json_and_masked(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        key = make_key(tmp_path).strip()
        server.get("/v1/me", key)
        server.stop()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line.get("path") == "/v1/me" for line in lines)
    assert key not in str(lines)


async def test_stopping_lets_background_work_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished: list[str] = []

    async def job(stopping: asyncio.Event) -> None:
        await stopping.wait()
        for _ in range(40):  # longer than the server itself takes to stop
            await asyncio.sleep(0.01)
        finished.append("job")

    working = System(name="working", open=lambda parts: Running(jobs={"job": job}))

    def started(url: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    await serve(Settings(port=0), "all", started, [*SYSTEMS, working])
    assert finished == ["job"]


async def test_a_uvicorn_that_looks_different_inside_is_refused() -> None:
    class Changed(HttpToolsProtocol):
        def __getattribute__(self, name: str) -> Any:
            if name == "pipeline":
                raise AttributeError(name)
            return super().__getattribute__(name)

    check_uvicorn()
    with pytest.raises(SettingsError, match="it has no pipeline; install"):
        check_uvicorn(Changed)
