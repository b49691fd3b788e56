"""What a system is to the house that it lives in.

A system declares its tables, queues, settings and commands, and opens into what it brings: routes,
doors, consumers, watchers, jobs. Server, Lambda, command line, doctor and template ask every system
the same questions and know none of them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from waystation.errors import DeclarationError
from waystation.outbound import Outbound

if TYPE_CHECKING:
    import asyncio

    from litestar import Router
    from prometheus_client.registry import Collector

    from waystation.blobs import Blobs
    from waystation.outbound import Guard
    from waystation.patterns import Cursors, Idempotency, Vault
    from waystation.queues import Consumer, Queues, QueueSpec
    from waystation.seam.callers import Callers
    from waystation.seam.commands import Commands
    from waystation.seam.http import Door
    from waystation.seam.jobs import Job
    from waystation.settings import Settings, SystemSettings
    from waystation.store import Change, Store, Table

Offer = Callable[..., Awaitable[Any]]
"""What one system does for another, wired in by its name: `relay.receive`."""


@dataclass(frozen=True)
class Watcher:
    """Follows the changes of a table: each at least once, and those of an item in order.

    A process that stalls while it handles a change, for longer than its lease lasts, may finish
    after its successor has gone on. What such a watcher writes should be conditional on what it
    found, as everything that may come twice should be.

    `name` is what its position is kept under: renaming a watcher begins the feed anew.
    """

    name: str
    table: Table
    handle: Callable[[Change], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """Something that the doctor tries: `run` says what is well, or raises. `fix` is the remedy."""

    name: str
    run: Callable[[], Awaitable[str]]
    fix: str


class Parts:
    """What the house gives every system to work with.

    `background` says whether this process does background work; where it does not, another
    process's jobs, or Lambda's triggers, do it.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        queues: Queues,
        blobs: Blobs,
        vault: Vault,
        guard: Guard,
        idempotency: Idempotency,
        cursors: Cursors,
        stopping: asyncio.Event,
        background: bool,
    ) -> None:
        self.settings = settings
        self.store = store
        self.queues = queues
        self.blobs = blobs
        self.vault = vault
        self.guard = guard
        self.outbound = Outbound(guard)
        """The way out of the system that is being opened: each has sockets of its own."""

        self.idempotency = idempotency
        self.cursors = cursors
        self.stopping = stopping
        self.background = background
        self._offers: dict[str, Offer] = {}
        self._wanted: dict[str, str] = {}
        self._opening = ""
        self._outbounds = [self.outbound]

    def offer(self, name: str) -> Offer:
        """What another system offers under a name. It may be called once all systems are open."""
        self._wanted.setdefault(name, self._opening)

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._offers[name](*arguments, **named)

        return call

    def open(self, systems: Sequence[System]) -> dict[str, Running]:
        """Open the systems and wire them together."""
        opened: dict[str, Running] = {}
        for system in systems:
            if system.name in opened:
                raise DeclarationError(f"two systems are called {system.name}")
            self._opening = system.name
            self.outbound = Outbound(self.guard)
            self._outbounds.append(self.outbound)
            opened[system.name] = system.open(self) if system.open else Running()
        self._offers.update(merged("offer", (running.offers for running in opened.values())))
        for name, system_name in self._wanted.items():
            if name not in self._offers:
                raise DeclarationError(f"{system_name} needs {name}, which no system offers")
        return opened

    async def close(self) -> None:
        for outbound in self._outbounds:
            await outbound.close()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A system that was opened: what it brings to this process."""

    routers: Callable[[], Sequence[Router]] = tuple
    """Called where there is an API: other processes start without what routes import."""

    provide: Mapping[str, object] = field(default_factory=dict)
    """What the routes' handlers are given, by the name of their argument."""

    doors: Sequence[Door] = ()
    cross_origin: Sequence[str] = ()
    """Prefixes of paths that pages of other sites may call, as their users."""

    callers: Callers | None = None
    """How it is known who calls. One system brings this."""

    consumers: Sequence[Consumer] = ()
    watchers: Sequence[Watcher] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    tend: Callable[[], Awaitable[object]] | None = None
    """Does once what its jobs do again and again: for where nothing runs in the background."""

    drain: Callable[[float], Awaitable[object]] | None = None
    """Waits for what is under way; what takes longer than so many seconds is left to others."""

    close: Callable[[], Awaitable[object]] | None = None
    checks: Sequence[Check] = ()
    metrics: Sequence[Collector] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class System:
    """What a package brings to the house, said in its `system.py`."""

    name: str
    tables: Sequence[Table] = ()
    queues: Sequence[QueueSpec] = ()
    settings: type[SystemSettings] | None = None
    commands: Callable[[Commands], None] | None = None
    open: Callable[[Parts], Running] | None = None


def merged(what: str, parts: Any) -> dict[str, Any]:
    """One dictionary of several; DeclarationError when two systems bring the same name."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in found:
                raise DeclarationError(f"two systems bring the {what} {name}")
            found[name] = value
    return found


def tables_of(systems: Sequence[System]) -> list[Table]:
    return [table for system in systems for table in system.tables]


def queues_of(systems: Sequence[System]) -> list[QueueSpec]:
    return [queue for system in systems for queue in system.queues]


def settings_of(systems: Sequence[System]) -> list[type[SystemSettings]]:
    return [system.settings for system in systems if system.settings is not None]
