"""URLs of pages: one spelling for what is one page, and where they are at the origin."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote, urljoin, urlsplit


def page_url(path: str, query: str, ignored: tuple[str, ...]) -> str:
    """A page's URL below its site, without the parameters that say nothing about the page."""
    if query and ignored:
        query = _remembered(query, ignored) if len(query) <= 200 else _without(query, ignored)
    return f"{path}?{query}" if query else path


def _without(query: str, ignored: tuple[str, ...]) -> str:
    names = frozenset(name for name in ignored if not name.endswith("*"))
    beginnings = tuple(name[:-1] for name in ignored if name.endswith("*"))
    kept = []
    for part in query.split("&"):
        name = unquote(part.partition("=")[0])
        if name not in names and not (beginnings and name.startswith(beginnings)):
            kept.append(part)
    return "&".join(kept)


_remembered = lru_cache(maxsize=4096)(_without)


def climbs(path: str) -> bool:
    """Whether a path has parts that lead upwards, however they are spelled."""
    if "." not in path and "%2" not in path:
        return False
    parts = unquote(path).replace("\\", "/").split("/")
    return any(part.partition(";")[0] in (".", "..") for part in parts)


def site_url(location: str, asked: str, origin: str, prefix: str = "") -> str | None:
    """What a `Location` names, as a URL of the site; None if it is elsewhere. `asked` is the URL
    that was asked for at the origin."""
    try:
        found = urlsplit(urljoin(asked, location))
        base = urlsplit(origin)
    except ValueError:
        return None
    if (found.scheme, found.netloc) != (base.scheme, base.netloc):
        return None
    path = found.path or "/"
    if prefix and path.startswith(f"{prefix}/"):
        path = path.removeprefix(prefix)
    elif base.path:
        if not path.startswith(f"{base.path}/"):
            return None
        path = path.removeprefix(base.path)
    return f"{path}?{found.query}" if found.query else path


def here(location: str, origin: str, prefix: str) -> str:
    """A `Location` that names the origin, as it is to be found here."""
    if location == origin or location.startswith((f"{origin}/", f"{origin}?")):
        rest = location.removeprefix(origin)
        return prefix + (rest if rest.startswith("/") else f"/{rest}")
    return location
