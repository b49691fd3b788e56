"""The way out: alone in the relay it opens sockets to others.

The address that a socket is about to connect to is checked, whatever name, redirect or resolver
led to it. Redirects are answers like any other. Of a body no more is read than is kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_URL = 2_000
KEPT_CHARACTERS = 1_000
_CONNECT_SECONDS = 5.0
_BODY_SECONDS = 5.0
_MOST_SOCKETS = 1_000
_MOST_FETCHED = 64 * 1024

_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/3",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "::/96",
    )
]
"""Beside what Python calls private: shared, local, translated and tunnelled addresses."""

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(OSError):
    """An address that deliveries must not reach."""


class Reply(msgspec.Struct, frozen=True):
    """What became of a request. `status` is 0 when there was no answer."""

    status: int
    body: str
    milliseconds: int
    error: str | None = None
    retry_after: str | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Guard:
    """Which addresses may be reached."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = [ipaddress.ip_network(network) for network in allowed]

    def permits(self, text: str) -> bool:
        """Whether an address is public, or in a network that the operator allows."""
        try:
            address = _plain(ipaddress.ip_address(text.partition("%")[0]))
        except ValueError:
            return False
        if any(
            address in network for network in self._allowed if network.version == address.version
        ):
            return True
        if any(address in network for network in _NEVER if network.version == address.version):
            return False
        if address.version == 6 and address not in _GLOBAL_UNICAST:
            return False
        return address.is_global and not address.is_multicast

    def check_url(self, url: str, field: str) -> None:
        """Refuse a URL that could never be delivered to. Names are looked up at each delivery."""
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
        except ValueError:
            raise InvalidInput(field, "this is not a URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(field, "a URL that begins with http:// or https://")
        if len(url) > MAX_URL or any(c.isspace() or ord(c) < 32 for c in url):
            raise InvalidInput(field, f"at most {MAX_URL} characters, none of them a space")
        if parts.fragment:
            raise InvalidInput(field, "no fragment: it would not be sent")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput(field, "no user name or password: send a header instead")
        if _is_literal(host) and not self.permits(host):
            raise InvalidInput(field, "this address is private")
        if host.rstrip(".").lower() in ("localhost", "ip6-localhost") and not self.permits(
            "127.0.0.1"
        ):
            raise InvalidInput(field, "this address is private")

    def socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, address = info
        if not self.permits(str(address[0])):
            raise AddressRefused(f"{address[0]} is private or reserved")
        return socket.socket(family, kind, protocol)


def _plain(address: Address) -> Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class Egress:
    """Sends requests out. Open it inside a running loop, close it at the end."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Reply:
        """Send one request and say what came back. Never raises for what the other side does."""
        begun = time.perf_counter()
        status, text, retry_after, error = 0, "", None, None
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=min(_CONNECT_SECONDS, seconds))
        try:
            async with self._opened().post(
                url, data=body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                status = response.status
                retry_after = response.headers.get("retry-after")
                text = await _beginning(response)
        except TimeoutError:
            error = None if status else f"no answer within {seconds:g} seconds"
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            error = None if status else _told(failure)
        elapsed = int((time.perf_counter() - begun) * 1000)
        return Reply(status, text, elapsed, error, retry_after)

    async def fetch(self, url: str) -> bytes:
        """A small document; OSError when it cannot be had."""
        limit = aiohttp.ClientTimeout(total=_CONNECT_SECONDS)
        try:
            async with self._opened().get(url, timeout=limit, allow_redirects=False) as response:
                content = await response.content.read(_MOST_FETCHED)
                if response.status != 200:
                    raise OSError(f"the answer was {response.status}")
                return content
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OSError(_told(error)) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=_MOST_SOCKETS, socket_factory=self.guard.socket, keepalive_timeout=15
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={
                    "user-agent": "Waystation",
                    "accept": "*/*",
                    "accept-encoding": "identity",
                },
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The first characters of a body. The rest is not read, and its connection is closed."""
    wanted = KEPT_CHARACTERS * 4
    content = b""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_BODY_SECONDS):
            while len(content) < wanted and not response.content.at_eof():
                content += await response.content.read(wanted - len(content))
    if not response.content.at_eof():
        response.close()
    return content.decode(errors="replace")[:KEPT_CHARACTERS].replace("\0", "\ufffd")


def _told(error: Exception) -> str:
    """What went wrong, in words that are safe to keep."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return f"address refused: {cause}"
        cause = cause.__cause__ or getattr(cause, "os_error", None) or cause.__context__
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name could not be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "the TLS connection failed"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.strerror or type(error.os_error).__name__}"
    return f"{type(error).__name__}: {error}"[:300]
