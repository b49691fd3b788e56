"""Connections: opened to addresses that the guard permits, kept while they are of use, and counted.

Looking up a name, waiting for room, connecting and the TLS handshake share one deadline.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohappyeyeballs import start_connection

from waystation.outbound.exchange import Exchange, NoAnswer
from waystation.outbound.guard import AddressRefused

if TYPE_CHECKING:
    from waystation.outbound.guard import Guard

MOST_SOCKETS = 1_000
MOST_TO_ONE = 256
"""Sockets to one host and port."""

_CONNECT_SECONDS = 5.0
_IDLE_SECONDS = 15.0
_SWEEP_SECONDS = 5.0
_NAME_SECONDS = 5.0
_MOST_NAMES = 1_000
_MOST_SESSIONS = 1_000
_READ_BYTES = 64 * 1024
_STAGGER_SECONDS = 0.25
_MOST_TRIED = 2
"""Addresses of each family."""


class Place(NamedTuple):
    """Where a connection leads."""

    host: str
    port: int
    tls: bool


class _Tls(ssl.SSLContext):
    """Verifies certificates, and goes on with a session that a host has given us before."""

    sessions: dict[str, ssl.SSLSession]

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        host = named.get("server_hostname")
        if isinstance(host, str) and (session := self.sessions.get(host)) is not None:
            named["session"] = session
        return super().wrap_bio(*given, **named)

    def remember(self, host: str, session: ssl.SSLSession | None) -> None:
        if session is not None:
            self.sessions.pop(host, None)
            self.sessions[host] = session
            if len(self.sessions) > _MOST_SESSIONS:
                del self.sessions[next(iter(self.sessions))]


def _tls() -> _Tls:
    context = _Tls(ssl.PROTOCOL_TLS_CLIENT)
    context.sessions = {}
    context.load_default_certs()
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["http/1.1"])
    return context


class Pool:
    def __init__(
        self, guard: Guard, *, most: int = MOST_SOCKETS, most_to_one: int = MOST_TO_ONE
    ) -> None:
        self._guard = guard
        self._most = most
        self._most_to_one = most_to_one
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._idle: dict[Place, list[Exchange]] = {}
        self._to: dict[Place, int] = {}
        self._all: set[Exchange] = set()
        self._opening = 0
        self._waiting: dict[Place, deque[asyncio.Future[Exchange | None]]] = {}
        self._closed = False
        self._names: dict[str, tuple[float, asyncio.Future[list[Any]]]] = {}
        self._context: _Tls | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # Taking and giving back

    def kept(self, place: Place) -> Exchange | None:
        """A connection that was used before and still works, unless somebody waits for one."""
        if place in self._waiting:
            return None
        idle = self._idle.get(place)
        while idle:
            exchange = idle.pop()
            if not idle:
                del self._idle[place]
            if exchange.is_fresh():
                return exchange
            self._drop(exchange)
        return None

    async def connected(self, place: Place, until: float) -> Exchange:
        """A new connection, or one that somebody gives back meanwhile. `until` is the loop's
        time."""
        if self._closed:
            raise NoAnswer("no connection: the client is closed", sent=False)
        if place in self._waiting or not self._has_room(place):
            exchange = await self._turn(place, until)
            if exchange is not None:
                return exchange
        else:
            self._begin(place)
        loop = asyncio.get_running_loop()
        try:
            exchange = await self._connect(place, min(until, loop.time() + _CONNECT_SECONDS))
        except BaseException:
            self._opening -= 1
            self._left(place)
            raise
        self._opening -= 1
        self._all.add(exchange)
        return exchange

    async def _turn(self, place: Place, until: float) -> Exchange | None:
        """Wait for somebody's connection, or for room to open one, in the order of arrival."""
        turn: asyncio.Future[Exchange | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(place, deque())
        waiting.append(turn)
        try:
            async with asyncio.timeout_at(until):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._hand_on(place, turn.result())
            elif turn in waiting:
                waiting.remove(turn)
                if not waiting:
                    self._waiting.pop(place, None)
            if isinstance(error, TimeoutError):
                raise NoAnswer("no answer: too many requests are under way", sent=False) from None
            raise

    def _hand_on(self, place: Place, exchange: Exchange | None) -> None:
        """What was given to one who has left meanwhile goes to the next."""
        if exchange is not None:
            self.give_back(exchange)
        else:
            self._opening -= 1
            self._left(place)

    def _begin(self, place: Place) -> None:
        self._opening += 1
        self._to[place] = self._to.get(place, 0) + 1

    def give_back(self, exchange: Exchange) -> None:
        """Keep a connection for the next request, if it can be."""
        place = exchange.place
        if place.tls and exchange.used == 1 and self._context is not None:
            tls = exchange.transport.get_extra_info("ssl_object")
            self._context.remember(_server_name(place.host), tls.session)
        if not exchange.usable:
            return
        if self._closed or (place in self._waiting and not exchange.is_fresh()):
            self._drop(exchange)
            return
        if (turn := self._next(place)) is not None:
            turn.set_result(exchange)
            return
        self._idle.setdefault(place, []).append(exchange)
        if self._waiting:
            self._let_in()
        if self._sweeper is None:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _next(self, place: Place) -> asyncio.Future[Exchange | None] | None:
        """The first who waits for a place."""
        waiting = self._waiting.get(place)
        while waiting:
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[place]
            if not turn.done():
                return turn
        return None

    def _has_room(self, place: Place) -> bool:
        if self._to.get(place, 0) >= self._most_to_one:
            return False
        if len(self._all) + self._opening >= self._most and self._idle:
            oldest = min((idle[0] for idle in self._idle.values()), key=lambda e: e.idle_since)
            self._drop(oldest)
        return len(self._all) + self._opening < self._most

    def _let_in(self) -> None:
        """Let those open a connection for whom there is room, one place after the other."""
        for place in list(self._waiting):
            if self._has_room(place) and (turn := self._next(place)) is not None:
                self._begin(place)
                turn.set_result(None)
                if place in self._waiting:  # the others come first now
                    self._waiting[place] = self._waiting.pop(place)

    def _lost(self, exchange: Exchange) -> None:
        if exchange in self._all:
            self._all.discard(exchange)
            idle = self._idle.get(exchange.place)
            if idle is not None and exchange in idle:
                idle.remove(exchange)
                if not idle:
                    del self._idle[exchange.place]
            self._left(exchange.place)

    def _left(self, place: Place) -> None:
        self._to[place] -= 1
        if not self._to[place]:
            del self._to[place]
        if self._waiting:
            self._let_in()

    def _drop(self, exchange: Exchange) -> None:
        exchange.close()
        self._lost(exchange)

    def _sweep(self) -> None:
        """Close what nobody has used for a while."""
        before = time.monotonic() - _IDLE_SECONDS
        old = [e for idle in self._idle.values() for e in idle if e.idle_since < before]
        for exchange in old:
            self._drop(exchange)
        self._sweeper = None
        if self._idle:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def close(self) -> None:
        self._closed = True
        for place in list(self._waiting):
            while (turn := self._next(place)) is not None:
                turn.set_exception(NoAnswer("no connection: the client is closed", sent=False))
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for exchange in list(self._all):
            self._drop(exchange)
        await asyncio.sleep(0)  # the loop lets go of their sockets

    # Connecting

    async def _connect(self, place: Place, until: float) -> Exchange:
        try:
            async with asyncio.timeout_at(until):
                return await self._reach(place)
        except TimeoutError:
            raise NoAnswer("no connection in time", sent=False) from None
        except AddressRefused as error:
            raise NoAnswer(f"the host was refused: {error}", sent=False) from None
        except socket.gaierror:
            raise NoAnswer("the name could not be resolved", sent=False) from None
        except ssl.SSLError:
            raise NoAnswer("the TLS connection failed", sent=False) from None
        except (UnicodeError, ValueError):
            raise NoAnswer("the name could not be resolved", sent=False) from None
        except OSError as error:  # its own text has the address in it
            why = os.strerror(error.errno) if error.errno else type(error).__name__
            raise NoAnswer(f"no connection: {why}", sent=False) from None

    async def _reach(self, place: Place) -> Exchange:
        addresses = await self._addresses(place)
        connected = await start_connection(
            addresses,
            happy_eyeballs_delay=_STAGGER_SECONDS,
            interleave=1,
            socket_factory=self._guard.socket,
        )
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {}
        if place.tls:
            if self._context is None:
                self._context = _tls()
            secured = {"ssl": self._context, "server_hostname": _server_name(place.host)}
        try:
            _, exchange = await loop.create_connection(
                lambda: Exchange(place, self._buffer, self._lost), sock=connected, **secured
            )
        except BaseException:
            connected.close()
            raise
        return exchange

    async def _addresses(self, place: Place) -> list[Any]:
        """Where a host is. What a name led to is believed for a moment; the guard looks at every
        address that is connected to, remembered or not."""
        try:
            literal = ipaddress.ip_address(place.host)
        except ValueError:
            found = _few(await self._looked_up(place.host))
            return [(*info[:4], (info[4][0], place.port, *info[4][2:])) for info in found]
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        rest = () if literal.version == 4 else (0, 0)
        address = (place.host, place.port, *rest)
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]

    async def _looked_up(self, host: str) -> list[Any]:
        """All who want the same name share one look-up."""
        loop = asyncio.get_running_loop()
        known = self._names.get(host)
        if known is None or (known[1].done() and loop.time() > known[0]):
            asked = asyncio.ensure_future(look_up(host))
            known = self._names[host] = (loop.time() + _NAME_SECONDS, asked)
            asked.add_done_callback(lambda done: self._name_found(host, done))
            if len(self._names) > _MOST_NAMES:
                del self._names[next(iter(self._names))]
        return await asyncio.shield(known[1])

    def _name_found(self, host: str, done: asyncio.Future[list[Any]]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._names.pop(host, None)  # the next one asks again


async def look_up(host: str) -> list[Any]:
    return await asyncio.get_running_loop().getaddrinfo(
        host, 0, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )


def _few(found: list[Any]) -> list[Any]:
    """No more addresses than need be tried: each costs a socket while it does not answer."""
    if not found:
        raise socket.gaierror("no address")
    families = dict.fromkeys(info[0] for info in found)
    return [i for family in families for i in [f for f in found if f[0] == family][:_MOST_TRIED]]


def _server_name(host: str) -> str:
    return host.rstrip(".")
