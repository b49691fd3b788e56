"""Serving with several processes: one writes into the embedded store, and the others answer."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import uvloop

from waystation.seam import tables_of
from waystation.server.processes import Processes
from waystation.server.serve import Role, listening, serve, url_of
from waystation.store import open_store
from waystation.store.sqlite import SqliteStore
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from waystation.clock import Clock
    from waystation.seam import System
    from waystation.settings import Settings


def serve_with_several(
    settings: Settings,
    role: Role,
    count: int,
    started: Callable[[str], None],
    systems: Sequence[System] = SYSTEMS,
    *,
    clock: Clock = time.time,
) -> int:
    """Serve with so many processes, until told to stop; the status to end with.

    On two cores, one that answers and one that writes do more than two that do both
    (benchmarks/saturation.md).
    """
    with listening(settings) as listener:
        left, found = _meeting()

        def serving(parent: int, begun: Callable[[], None]) -> None:
            run(
                serve(
                    settings,
                    role,
                    lambda url: begun(),
                    systems,
                    clock=clock,
                    listener=listener,
                    parent=parent,
                    meeting=left,
                )
            )

        def writing(parent: int, begun: Callable[[], None]) -> None:
            listener.close()
            run(_write(settings, systems, clock, found, parent, begun))

        children = [serving] * count
        if settings.store.startswith("sqlite:///"):
            children[0] = writing
        return Processes(children, lambda: started(url_of(listener))).run()


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def _meeting() -> tuple[socket.socket, socket.socket]:
    """Where those that serve leave word, and where the one that writes finds it. Both outlive any
    of them, so that whoever takes another's place finds the others again."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)
    return ends


async def _write(
    settings: Settings,
    systems: Sequence[System],
    clock: Clock,
    meeting: socket.socket,
    parent: int,
    begun: Callable[[], None],
) -> None:
    """Write for others, who have ended when this does."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    def orphaned() -> None:
        loop.remove_reader(parent)
        stopping.set()

    loop.add_reader(parent, orphaned)
    names = settings.table_names
    async with await open_store(
        settings.store, tables_of(systems), env=settings.env, clock=clock, names=names
    ) as store:
        assert isinstance(store, SqliteStore)
        begun()
        await store.write_for_others(meeting, stopping)
