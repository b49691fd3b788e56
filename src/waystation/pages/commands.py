"""`waystation pages inspect|revalidate|rollback|warm`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from waystation.client import ApiClient
    from waystation.seam import Call, Commands

_AT_ONCE = 50


def add_commands(commands: Commands) -> None:
    pages = commands.group("pages", "the page cache")
    inspect = pages.add("inspect", _inspect, help="show a page, or which are kept", calls=True)
    inspect.add_argument("site", help="the name of the site")
    inspect.add_argument("path", nargs="?", help="the path of a page; without one, list them")
    inspect.add_argument("--prefix", default="/", help="list those whose paths begin with this")

    purge = pages.add("revalidate", _revalidate, help="have pages generated anew", calls=True)
    purge.add_argument("site", help="the name of the site")
    target = purge.add_mutually_exclusive_group(required=True)
    target.add_argument("--path", help="one path, with all its queries unless it has one")
    target.add_argument("--tag", help="all pages with a tag")
    target.add_argument("--prefix", help="all paths that begin with this")
    target.add_argument("--all", action="store_true", help="everything")
    purge.add_argument("--hard", action="store_true", help="do not serve the old ones meanwhile")
    purge.add_argument("--dry-run", action="store_true", help="only say what it would be about")

    back = pages.add("rollback", _rollback, help="make a page what it was before", calls=True)
    back.add_argument("site", help="the name of the site")
    back.add_argument("path", help="the path of the page")

    warm = pages.add("warm", _warm, help="fetch pages before anybody asks", calls=True)
    warm.add_argument("site", help="the name of the site")
    warm.add_argument("paths", nargs="*", metavar="PATH", help="the paths of pages")
    warm.add_argument("--sitemap", metavar="PATH", help="take them from a map of the site")


def _base(call: Call) -> str:
    return f"/v1/pages/sites/{quote(call.options.site, safe='')}"


async def _inspect(call: Call) -> None:
    async with call.client() as api:
        if call.options.path is None:
            entries = [entry async for entry in _entries(api, call)]
            lines = [f"{e['state']:<8} {e['status']} {e['url']}" for e in entries]
            call.show(entries, "\n".join(lines) or "no pages are kept")
            return
        query = urlencode({"path": call.options.path})
        found = await api.call("GET", f"{_base(call)}/entry?{query}")
    call.show(found, "\n\n".join(map(_page_text, found["pages"])))


async def _entries(api: ApiClient, call: Call) -> Any:
    cursor: str | None = None
    while True:
        query = {"prefix": call.options.prefix, "limit": "200"}
        if cursor is not None:
            query["cursor"] = cursor
        page = await api.call("GET", f"{_base(call)}/entries?{urlencode(query)}")
        for entry in page["data"]:
            yield entry
        cursor = page["cursor"]
        if cursor is None:
            return


def _page_text(page: dict[str, Any]) -> str:
    state = page["state"] + (f" ({page['reason']})" if page["reason"] else "")
    rows = [
        ("state", state),
        ("status", page["status"]),
        ("generated", page["generated_at"]),
        ("fresh until", page["fresh_until"]),
        ("stale until", page["stale_until"]),
        ("etag", page["etag"]),
        ("size", page["size"]),
        ("encodings", ", ".join(page["encodings"]) or "none"),
        ("tags", ", ".join(page["tags"]) or "none"),
        ("versions", page["versions"]),
        ("rolled back", "yes" if page["pinned"] else "no"),
        ("lease", f"held until {page['lease_expires_at']}" if page["lease_held"] else "free"),
        ("key", page["key"]),
    ]
    if page["variant"]:
        rows.insert(0, ("variant", page["variant"].replace("\n", "; ")))
    return "\n".join([page["url"], *(f"  {name:<12} {value}" for name, value in rows)])


async def _revalidate(call: Call) -> None:
    options = call.options
    given: dict[str, Any] = {
        "path": options.path,
        "tag": options.tag,
        "prefix": options.prefix,
        "all": options.all or None,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    asked |= {"mode": "hard" if options.hard else "soft", "dry_run": options.dry_run}
    async with call.client() as api:
        done = await api.call("POST", f"{_base(call)}/revalidate", asked)
    target = f"{done['kind']} {done['target']}".rstrip()
    if not options.dry_run:
        call.show(done, f"purged {target}")
        return
    more = "" if done["complete"] else " at least"
    lines = [f"{target} is about{more} {_pages(done['matched'])}", *done["urls"]]
    call.show(done, "\n".join(lines))


def _pages(count: int) -> str:
    return "1 page" if count == 1 else f"{count} pages"


async def _rollback(call: Call) -> None:
    async with call.client() as api:
        page = await api.call("POST", f"{_base(call)}/rollback", {"path": call.options.path})
    call.show(page, f"{page['url']} is what it was before, until it is purged")


async def _warm(call: Call) -> int:
    """Page after page, with as many calls as it takes."""
    options = call.options
    if bool(options.paths) == bool(options.sitemap):
        print("give paths, or --sitemap", file=sys.stderr)
        return 2
    warmed, failed, waiting = 0, [], list(options.paths)
    async with call.client() as api:
        asked: dict[str, Any] = {"sitemap": options.sitemap}
        while options.sitemap is not None or waiting:
            if options.sitemap is None:
                asked = {"paths": waiting[:_AT_ONCE]}
            done = await api.call("POST", f"{_base(call)}/warm", asked)
            waiting = done["remaining"] + waiting[_AT_ONCE:]
            options.sitemap = None
            warmed += done["warmed"]
            failed += done["failed"]
            print(f"{warmed} warm, {len(waiting)} to go", file=sys.stderr, flush=True)
    lines = [f"{_pages(warmed)} {'is' if warmed == 1 else 'are'} warm"]
    lines += [f"{each['path']}: {each['reason']}" for each in failed]
    call.show({"warmed": warmed, "failed": failed}, "\n".join(lines))
    return 1 if failed else 0
