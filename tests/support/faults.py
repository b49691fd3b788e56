"""Trouble on order: something real, with what a test wants to happen around its calls."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from waystation.relay.system import open_relay
from waystation.systems import RELAY, SYSTEMS

if TYPE_CHECKING:
    from waystation.seam import Parts, Running, System

Around = Callable[..., Awaitable[Any]]
"""Is given the real call and its arguments."""


class Faults:
    """Stands before a store or a queue, and passes on what it is not told to meddle with."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.around: dict[str, Around] = {}

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)
        return partial(self.around[name], call) if name in self.around else call

    def fail_once(self, name: str, error: Exception) -> None:
        """Have the next call of a name fail."""

        async def failing(call: Around, *given: Any, **named: Any) -> Any:
            del self.around[name]
            raise error

        self.around[name] = failing


def relay_on(options: dict[str, Any] | None = None, **parts: Callable[[Any], Any]) -> list[System]:
    """All systems, the relay on parts that were changed: `store=Faults`."""

    def opened(given: Parts) -> Running:
        changed = copy.copy(given)
        for name, change in parts.items():
            setattr(changed, name, change(getattr(given, name)))
        return open_relay(changed, **(options or {}))

    return [replace(system, open=opened) if system is RELAY else system for system in SYSTEMS]


def system_on(
    name: str, systems: Sequence[System] = SYSTEMS, **parts: Callable[[Any], Any]
) -> list[System]:
    """Systems, one of them on parts that were changed: `store=Faults`."""

    def opening(system: System) -> Callable[[Parts], Running]:
        def opened(given: Parts) -> Running:
            changed = copy.copy(given)
            for part, change in parts.items():
                setattr(changed, part, change(getattr(given, part)))
            assert system.open is not None
            return system.open(changed)

        return opened

    return [
        replace(system, open=opening(system)) if system.name == name else system
        for system in systems
    ]
