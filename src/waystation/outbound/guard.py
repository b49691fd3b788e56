"""Which addresses may be reached: the one that a socket is about to connect to is checked,
whatever name, redirect or resolver led to it."""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_URL = 2_000

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

_NUMBER = re.compile(r"(?i)\d+|0x[0-9a-f]*")
_DOTS = str.maketrans("\u3002\uff61", "..")
"""Other scripts' full stops, which separate the parts of a name, too."""

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(OSError):
    """An address that requests must not reach."""


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
        """Refuse a URL that could never be reached. Names are looked up at each request."""
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
        except ValueError:
            raise InvalidInput(field, "this is not a URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(field, "must begin with http:// or https:// and name a host")
        if len(url) > MAX_URL or any(c.isspace() or ord(c) < 32 for c in url):
            raise InvalidInput(field, f"must have at most {MAX_URL} characters, and no spaces")
        if parts.fragment:
            raise InvalidInput(field, "must not have a fragment: it would never be sent")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput(field, "must not have a user name or password: use a header instead")
        self._check_host(host, field)

    def _check_host(self, host: str, field: str) -> None:
        plain = _plain_name(host)
        if "%" in host and not _is_literal(host):
            raise InvalidInput(field, "must not have a host with percent signs")
        if _is_odd_number(host) or (plain != host and _is_literal(plain)):
            raise InvalidInput(
                field, "must name its host, or have a plain address such as 192.0.2.1"
            )
        if any(not 0 < len(label) < 64 for label in plain.removesuffix(".").split(".")):
            raise InvalidInput(field, "must name a host whose parts have 1 to 63 characters")
        if _is_literal(host) and not self.permits(host):
            raise InvalidInput(field, "must not be a private address")
        if plain.rstrip(".").lower() in ("localhost", "ip6-localhost") and not self.permits(
            "127.0.0.1"
        ):
            raise InvalidInput(field, "must not be a private address")

    def socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, address = info
        if not self.permits(str(address[0])):
            raise AddressRefused("its address is private or reserved")
        return socket.socket(family, kind, protocol)


def _plain(address: Address) -> Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_odd_number(host: str) -> bool:
    """Whether a host is an address in one of the spellings that only some programs understand:
    `127.1`, `2130706433`, `0x7f.1`, and digits of other scripts."""
    plain = _plain_name(host).rstrip(".")
    last = plain.rpartition(".")[2]
    if not _NUMBER.fullmatch(last):
        return False
    return plain != host or not _is_literal(plain)


def _plain_name(host: str) -> str:
    """A host as it is once programs have made ASCII of it."""
    return unicodedata.normalize("NFKC", host).translate(_DOTS)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
