"""Moto's server, for SQS and S3: in this process, with a clock that tests can move."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import moto.sqs.models
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


_POLL_SECONDS = 0.02


@contextmanager
def running() -> Iterator[str]:
    """The endpoint of a fresh server."""
    _one_receive_at_a_time()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def emptied(env: str) -> None:
    """Remove every message of an environment's queues."""
    for regions in get_backend("sqs").values():
        for backend in regions.values():
            for name in [name for name in backend.queues if name.startswith(f"{env}-")]:
                backend.queues[name]._messages = []
                backend.queues[name]._pending_messages = set()
                backend.queues[name].deleted_messages = set()


def follow(clock: Callable[[], float], patch: pytest.MonkeyPatch) -> None:
    """Let moto's queues go by a test's clock, which never quite stands still for them."""
    begun = time.monotonic()

    def now(_: object = None) -> float:
        return clock() + time.monotonic() - begun

    patch.setattr(moto.sqs.models, "unix_time", now)
    patch.setattr(moto.sqs.models, "unix_time_millis", lambda _=None: now() * 1000)


def _one_receive_at_a_time() -> None:
    """Its receives are not safe in threads: two could get one message. Those that wait for one do
    not keep others from theirs."""
    lock = threading.Lock()
    receive = moto.sqs.models.SQSBackend.receive_message

    def alone(self: Any, name: str, count: int, wait: int, *rest: Any, **named: Any) -> Any:
        ends = time.monotonic() + wait
        while True:
            with lock:
                found = receive(self, name, count, 0, *rest, **named)
            if found or time.monotonic() >= ends:
                return found
            time.sleep(_POLL_SECONDS)

    moto.sqs.models.SQSBackend.receive_message = alone  # type: ignore[method-assign,assignment]
