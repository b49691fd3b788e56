"""A transport that sends what is written in one turn of the loop at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.departures import departures_of

if TYPE_CHECKING:
    import asyncio


class Corked:
    """Writes once for several calls, and together with all other connections.

    Uvicorn writes the head of an answer and its body one after the other; each would be a system
    call and a packet of its own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._departures = departures_of(loop)
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._departures.add(self.flush)
        self._parts.append(data)

    @property
    def pending(self) -> bool:
        """Whether something was written in this turn of the loop."""
        return bool(self._parts)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
