"""Serving: uvicorn in front, jobs behind, and a drain at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Literal

import uvicorn

from waystation.errors import SettingsError
from waystation.server.app import build_app, build_worker_app
from waystation.server.inside import check_uvicorn
from waystation.server.protocol import BoundedProtocol
from waystation.server.runtime import running
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from waystation.clock import Clock
    from waystation.seam import System
    from waystation.server.front import Front
    from waystation.settings import Settings

log = logging.getLogger(__name__)

Role = Literal["all", "api", "worker"]

_GRACE_SECONDS = 25
_ONE_SIGNAL_SECONDS = 1.0
_BACKLOG = 2048
_MOST_CONNECTIONS = 10_000
_RESERVED_FILES = 1_500
"""For deliveries, files and whatever else is not a client's."""


async def serve(
    settings: Settings,
    role: Role,
    started: Callable[[str], None],
    systems: Sequence[System] = SYSTEMS,
    *,
    clock: Clock = time.time,
    listener: socket.socket | None = None,
    parent: int | None = None,
    meeting: socket.socket | None = None,
) -> None:
    """Serve until told to stop, then finish what was begun.

    `started` is told the address once requests are answered. Where several processes serve, each
    has the same `listener`, and stops when the file descriptor of its `parent` ends. At the
    `meeting` they find the one that writes for them.
    """
    check_uvicorn()
    with nullcontext(listener) if listener is not None else listening(settings) as listener:
        background = role != "api"
        async with running(
            settings, systems, background=background, clock=clock, meeting=meeting
        ) as runtime:
            app = build_worker_app(runtime) if role == "worker" else build_app(runtime)
            server = _Server(_config(app, settings))

            loop = asyncio.get_running_loop()
            until = asked = loop.time()

            def stop() -> None:
                nonlocal until, asked
                if server.should_exit:
                    # Asked twice; but one signal may reach a child by two ways.
                    again = parent is None or loop.time() - asked > _ONE_SIGNAL_SECONDS
                    server.force_exit = server.force_exit or again
                    return
                log.info("stopping: finishing what was begun")
                asked = loop.time()
                until = asked + _GRACE_SECONDS
                runtime.supervisor.stopping.set()
                server.should_exit = True

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            if parent is not None:
                loop.add_reader(parent, _orphaned, loop, parent, stop)
            runtime.supervisor.start()
            _settle_garbage()
            url = url_of(listener)
            server.when_started = lambda: started(url)
            try:
                await server.serve(sockets=[listener])
                await _end(server.server_state.tasks)
            finally:
                await runtime.supervisor.stop(max(1.0, until - loop.time()))
                await runtime.drain(max(1.0, until - loop.time()))


def _orphaned(loop: asyncio.AbstractEventLoop, parent: int, stop: Callable[[], None]) -> None:
    loop.remove_reader(parent)
    stop()


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _settle_garbage() -> None:
    """What is there at the start stays: leave it out of every later collection, and collect less
    often. A request leaves little behind that is not freed at once; those under way at the same
    time have some ten thousand objects, which are no reason to collect."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(60_000, 20, 20)


async def _end(requests: set[asyncio.Task[None]]) -> None:
    """Cancel the requests that were not finished in time; each may put back what it holds."""
    ending = list(requests)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class _Server(uvicorn.Server):
    """Uvicorn, but the signals are ours."""

    when_started: Callable[[], None]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_started()


def _config(app: Front, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # the front adds it to answers that have none
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=75,
        limit_concurrency=_most_connections(),
    )


def _most_connections() -> int:
    """How many clients there may be at once, after raising the number of files that this process
    may have open as far as it is allowed to. Clients never use up what deliveries need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(16, min(_MOST_CONNECTIONS, soft - _RESERVED_FILES))


@contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """The socket, bound before anything is opened: a port that is taken is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise SettingsError(
                f"port {settings.port} of {settings.host} cannot be used: {error.strerror}; "
                "choose another one with --port or WAYSTATION_PORT"
            ) from error
        listener.setblocking(False)
        yield listener
