"""Whom to throttle when all that is known of a caller is an address."""

from __future__ import annotations

import ipaddress


def throttled(host: str | None) -> str:
    """An address, or all of an IPv6 customer's."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
