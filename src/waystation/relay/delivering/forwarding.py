"""What of a sender's request goes on to a destination: never more than the sender may say.

The headers and parameters that we vouch for, or that the destination's owner has set, are not the
sender's to set.
"""

from __future__ import annotations

from urllib.parse import unquote_plus, urlsplit

_MAX_QUERY = 4_000
_OURS = ("x-waystation-", "webhook-", "svix-", "proxy-", "x-forwarded-")
_NOT_FORWARDED = frozenset(
    {
        *("host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"),
        *("authorization", "cookie", "expect", "content-length", "accept-encoding", "accept"),
        *("forwarded", "via", "x-real-ip", "user-agent", "idempotency-key", "http2-settings"),
    }
)


def forwarded(headers: dict[str, str]) -> dict[str, str]:
    """A sender's headers without those that are about the connection, that hold credentials, or
    that only we may set. `Connection` may name more of the first kind."""
    named: set[str] = set()
    if "connection" in headers:
        named = {name.strip().lower() for name in headers["connection"].split(",")}
    return {
        name: value
        for name, value in headers.items()
        if name not in _NOT_FORWARDED and name not in named and not name.startswith(_OURS)
    }


def with_query(url: str, query: str | None) -> str:
    """A destination with a sender's parameters, but for those that it has itself."""
    if not query or len(query) > _MAX_QUERY:
        return url
    own = {_name(part) for part in urlsplit(url).query.split("&")}
    added = "&".join(part for part in query.split("&") if part and _name(part) not in own)
    if not added:
        return url
    return f"{url}{'&' if '?' in url else '?'}{added}"


def _name(parameter: str) -> str:
    """What most frameworks call a parameter, whatever its case and brackets."""
    return unquote_plus(parameter.partition("=")[0]).partition("[")[0].strip().casefold()
