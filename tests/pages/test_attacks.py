"""Hostile visitors, tenants and origins: nobody gets another's page, and nobody feels another."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.pages.press import Made, Press, origin_at, press_at
from waystation.pages.http.directives import directives
from waystation.pages.keeping.memory import Memory
from waystation.pages.serving import limits
from waystation.pages.serving.limits import Busy

if TYPE_CHECKING:
    from tests.pages.press import Origin
    from waystation.clock import ManualClock


async def tenant(press: Press, name: str = "theirs", **given: Any) -> str:
    """A signed-up account with a site of its own."""
    token = str((await press.server.sign_up("mallory@example.com"))["access_token"])
    body = {"origin": press.origin.url, "revalidate_seconds": 60, **given}
    answer = await press.call("PUT", f"/v1/pages/sites/{name}", body, token=token)
    assert answer.status == 200, answer
    return token


# What one visitor sends is not in another's page

ECHOED = [
    {"host": "evil.example"},
    {"x_forwarded_host": "evil.example"},
    {"x_forwarded_proto": "evil"},
    {"forwarded": "host=evil.example"},
    {"x_original_url": "/evil"},
    {"x_rewrite_url": "/evil"},
    {"x_http_method_override": "EVIL"},
    {"x_host": "evil.example"},
]


@pytest.mark.parametrize("sent", ECHOED)
async def test_addresses_that_a_visitor_makes_up_reach_no_page(
    local: Press, sent: dict[str, str]
) -> None:
    def decide(request: Any) -> Made:
        return Made(str(sorted(request.headers.items())).lower().encode())

    local.origin.decide = decide
    await local.get(**sent)
    assert "evil" not in await local.text()


async def test_a_page_that_depends_on_what_we_say_about_a_visitor_is_not_kept(
    local: Press,
) -> None:
    local.origin.say("Vary: X-Forwarded-For", "Cache-Control: max-age=60")
    assert "detail=vary" in await local.how()
    answer = await local.call(
        "PUT",
        "/v1/pages/sites/new",
        {"origin": local.origin.url, "revalidate_seconds": 1, "vary": ["Host"]},
    )
    assert (answer.status, answer.fields) == (400, ["vary"])


@pytest.mark.parametrize("name", ["x_api_key", "x_auth_token", "authorization", "x_session"])
async def test_who_says_who_they_are_neither_fills_nor_gets_a_page_for_everyone(
    local: Press, name: str
) -> None:
    """Unless the origin says that it is for everyone."""
    first = await local.get(**{name.replace("_", "-"): "alice"})
    anonymous = await local.get()
    again = await local.get(**{name.replace("_", "-"): "bob"})
    assert len({first.body, anonymous.body, again.body}) == 3


PERSONAL = ["Set-Cookie: session=alices", "Cache-Control: private", "X-User: alice"]


@pytest.mark.parametrize("line", PERSONAL[:2])
async def test_what_a_304_says_to_one_is_not_told_to_others(local: Press, line: str) -> None:
    local.origin.say('ETag: "1"', "Cache-Control: public, max-age=10")
    await local.get()
    local.clock.advance(11)

    def decide(request: Any) -> Made:
        lines = [("ETag", '"1"'), ("X-User", "alice"), tuple(line.split(": "))]
        if "If-None-Match" in request.headers:
            return Made(status=304, headers=lines)  # type: ignore[arg-type]
        return Made(b"alice's", headers=lines)  # type: ignore[arg-type]

    local.origin.decide = decide
    await local.get(cookie="alice", cache_control="no-cache")
    local.origin.decide = None
    local.origin.say('ETag: "1"', status=304)
    other = await local.get()
    assert "alice" not in str(other.headers) + other.body.decode()


async def test_a_304_to_someone_who_signed_in_leaves_the_page_as_it_was(local: Press) -> None:
    local.origin.say('ETag: "1"', "Cache-Control: max-age=60")
    await local.get()
    local.origin.say('ETag: "1"', "Cache-Control: max-age=60", status=304)
    await local.get(authorization="Basic eDp5", cache_control="no-cache")
    page = await local.entry()
    assert (page["state"], page["strict"]) == ("fresh", False)


@pytest.mark.parametrize("said", ["private=true", 'private=""', "private=x, max-age=60"])
async def test_a_private_that_is_malformed_is_private(local: Press, said: str) -> None:
    local.origin.say(f"Cache-Control: {said}, max-age=60")
    assert "detail=private" in await local.how()


async def test_cookies_are_told_apart_as_they_are_written(local: Press) -> None:
    def decide(request: Any) -> Made:
        lines = [("Vary", "Cookie"), ("Cache-Control", "max-age=60")]
        return Made(request.headers["Cookie"].encode(), headers=lines)

    local.origin.decide = decide
    for cookie in ("a=1, b=2", "a=1,", "a=1"):
        assert await local.text(cookie=cookie) == cookie


# What one account does, another does not see


async def test_a_tenants_page_cannot_act_on_the_host(local: Press) -> None:
    await tenant(local)
    local.origin.say(
        "Clear-Site-Data: cookies",
        "Strict-Transport-Security: max-age=0",
        "Service-Worker-Allowed: /",
        "NEL: {}",
        "Content-Security-Policy: default-src *",
        "Set-Cookie: signin=evil; Path =/; Domain =example.com",
    )
    answer = await local.get(site="theirs")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    for name in ("clear-site-data", "strict-transport-security", "service-worker-allowed", "nel"):
        assert name not in answer.headers
    assert answer.headers["set-cookie"] == "signin=evil; Path=/pages/theirs/"


async def test_a_tenant_gets_no_pages_that_another_service_keeps_under_its_name(
    local: Press,
) -> None:
    """Operators share their tables with other services; a tenant may not help itself to them."""
    from waystation.pages.keeping.places import Place
    from waystation.pages.tables import PageMeta

    await local.service.pages.blobs.put("acme/inbox.html", b"acme's own")
    await local.store.put(
        PageMeta(
            pk=Place("acme", "/p").pk,
            s3_key="acme/inbox.html",
            generated_at=local.store.now(),
            revalidate_seconds=3_600,
        )
    )
    await tenant(local, "acme")
    assert (await local.get(site="acme")).body == b"page 1 of /p"
    meta = await local.row(Place("acme", "/p").meta)
    assert meta.s3_key == "acme/inbox.html"


async def test_who_takes_over_a_name_cannot_go_back_to_pages_of_before(press: Press) -> None:
    for _ in range(2):
        await press.get()
        await press.revalidate(all=True, mode="hard")
    await press.get()
    await press.call("DELETE", press.base)
    other = await press.server.api_key(email="bob@example.com")
    given = {"origin": press.origin.url, "revalidate_seconds": 60}
    await press.call("PUT", press.base, given, token=other)
    await press.get()
    answer = await press.call("POST", f"{press.base}/rollback", {"path": "/p"}, token=other)
    assert answer.status == 404


async def test_a_request_that_waits_gets_no_page_of_a_former_owner(local: Press) -> None:
    local.origin.gate = asyncio.Event()
    slow = asyncio.create_task(local.get())
    await local.origin.arrived.wait()
    await local.call("DELETE", local.base)
    other = await local.server.api_key(email="bob@example.com")
    given = {"origin": local.origin.url, "revalidate_seconds": 60}
    await local.call("PUT", local.base, given, token=other)
    theirs = asyncio.create_task(local.get())
    while local.origin.count < 2:
        await asyncio.sleep(0.01)
        local.clock.advance(1)
    local.origin.gate.set()
    assert (await slow).body == b"page 1 of /p"
    assert (await theirs).body == b"page 2 of /p"


async def test_a_change_of_origin_counts_in_processes_that_have_not_heard_of_it(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    where = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with (
        press_at(clock, origin, **where) as one,
        press_at(clock, origin, **where) as other,
        origin_at(clock) as elsewhere,
    ):
        await other.get("/x")
        await one.put(origin=elsewhere.url)
        assert (await other.get()).body.startswith(b"page 2")  # from where it was
        clock.advance(3)
        elsewhere.say(body=b"from the new one")
        assert (await other.get()).body == (await one.get()).body == b"from the new one"


async def test_what_a_site_no_longer_allows_is_not_served_any_more(local: Press) -> None:
    await local.put(cache_set_cookie=True)
    local.origin.say("Set-Cookie: session=1", "Cache-Control: max-age=60")
    await local.get()
    await local.put(cache_set_cookie=False)
    local.origin.say()
    assert "set-cookie" not in (await local.get()).headers


# Nobody hurts another


async def test_origins_that_hang_leave_sockets_for_others() -> None:
    busy, held = Busy(), []

    async def hang(account: str) -> None:
        async with busy.turn(account):
            await asyncio.Event().wait()

    for account in range(200):
        held += [asyncio.create_task(hang(f"a{account}")) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(busy._there.values()) < limits._ALL_AT_ONCE + 200
    async with asyncio.timeout(1):
        async with busy.turn("another"):
            pass
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_who_waits_for_a_turn_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MOST_AT_ONCE", 8)
    busy, done = Busy(), []

    async def one(n: int) -> None:
        async with busy.turn("a"):
            await asyncio.sleep(0)
            done.append(n)

    async with asyncio.timeout(5):
        await asyncio.gather(*(one(n) for n in range(100)))
    assert sorted(done) == list(range(100))
    assert (busy._there, busy._lines) == ({}, {})


async def test_large_pages_are_sent_to_so_many_slow_readers_and_no_more(
    local: Press, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.origin.say("Content-Type: image/png", body=b"x" * 4_000_000)
    await local.get()
    monkeypatch.setattr(local.service.proxy._going, "_most", 40_000_000)
    writers = []
    host, port = local.server.url.removeprefix("http://").split(":")
    for _ in range(12):
        reader, writer = await asyncio.open_connection(host, int(port), limit=1_000)
        writer.write(b"GET /pages/shop/p HTTP/1.1\r\nHost: x\r\n\r\n")
        writers.append((reader, writer))
        await asyncio.sleep(0.02)
    refused = (await local.get()).status
    for _, writer in writers:
        writer.close()
    assert refused == 503
    async with asyncio.timeout(5):
        while (await local.get()).status != 200:
            await asyncio.sleep(0.05)


async def test_who_sends_many_requests_at_once_and_never_reads_takes_little_memory(
    local: Press,
) -> None:
    """Hits, too, are answered as their client reads."""
    local.origin.say("Content-Type: image/png", "Cache-Control: max-age=60", body=b"x" * 200_000)
    await local.get()
    before = _megabytes()
    host, port = local.server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /pages/shop/p HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
    for _ in range(20):
        assert (await local.get()).status == 200  # others are served meanwhile
    assert _megabytes() - before < 60
    writer.close()


def _megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


async def test_requests_in_one_packet_are_answered_in_order(local: Press) -> None:
    for n in range(3):
        await local.get(f"/{n}")
    host, port = local.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    asked = [n % 3 for n in range(60)]
    for n in asked:
        writer.write(f"GET /pages/shop/{n} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    got = b""
    while got.count(b" of /") < len(asked):
        got += await reader.read(65_536)
    writer.close()
    assert [int(part[:1]) for part in got.split(b" of /")[1:]] == asked


async def test_a_large_page_arrives_whole(local: Press) -> None:
    body = bytes(range(256)) * 12_000
    local.origin.say("Content-Type: image/png", body=body)
    for _ in range(2):
        assert (await local.get()).body == body


async def test_a_page_that_is_too_large_is_refused_and_said_to_be(
    clock: ManualClock, origin: Origin
) -> None:
    async with press_at(clock, origin, pages_max_mb=1) as press:
        origin.say(body=b"x" * 1_100_000)
        answer = await press.get()
        assert answer.status == 502
        assert "too large" in answer.json["detail"]


async def test_a_directive_of_quotes_without_end_costs_little_time() -> None:
    for text in ('a=\\",' * 900, '"' * 3_900, 'private="' * 400):
        begun = time.perf_counter()
        directives([(b"cache-control", text[:4_000].encode())])
        assert time.perf_counter() - begun < 0.05


async def test_memory_is_shared_fairly_among_tenants() -> None:
    from waystation.pages.keeping.entries import Held, entry_of
    from waystation.pages.keeping.places import Place
    from waystation.pages.tables import PageMeta

    memory = Memory(1_000_000)

    def put(tenant: str, n: int) -> None:
        place = Place(tenant, f"/{n}")
        meta = PageMeta(pk=place.pk, s3_key="x", generated_at=0, revalidate_seconds=1)
        entry = entry_of(place, meta, 0)
        assert entry is not None
        memory.put(place, Held(entry, {"": b"x" * 8_000}))

    for n in range(10):
        put("small", n)
    for n in range(10_000):
        put("large", n)
    assert memory.bytes <= 1_000_000
    assert all(memory.get(Place("small", f"/{n}")) is not None for n in range(10))
    assert memory.get(Place("large", "/9999")) is not None


async def test_what_is_kept_in_memory_counts_with_its_address(local: Press) -> None:
    before = local.service.pages.memory.bytes
    await local.get("/p?" + "x" * 3_000)
    assert local.service.pages.memory.bytes - before > 3_000


async def test_new_pages_are_bounded_for_each_account(
    local: Press, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NEW_PAGES_A_DAY", 2)
    await tenant(local)
    how = [(await local.get(f"/{n}", site="theirs")).headers["cache-status"] for n in range(4)]
    assert ["stored" in each for each in how] == [True, True, False, False]
    assert "detail=allowance" in how[3]
    assert "stored" in await local.how("/mine")
    local.clock.advance(86_400)
    assert "stored" in (await local.get("/later", site="theirs")).headers["cache-status"]


async def test_a_site_that_is_its_own_origin_comes_to_an_end(local: Press) -> None:
    await local.put(origin=f"{local.server.url}/pages/shop")
    answer = await local.get()
    assert answer.status == 508


@pytest.mark.parametrize(
    "path", ["/../x", "/a/../../x", "/%2e%2e/x", "/a/..%2fx", "/..;/x", "/.", "/a\\..\\b"]
)
async def test_a_path_does_not_lead_out_of_its_site(local: Press, path: str) -> None:
    host, port = local.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /pages/shop{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert local.origin.count == 0


async def test_a_private_address_is_no_origin(clock: ManualClock, origin: Origin) -> None:
    async with press_at(clock, origin, allow_networks=["127.0.0.1/32"]) as press:
        for where in ("http://127.0.0.2", "http://10.0.0.1", "http://[::1]"):
            given = {"origin": where, "revalidate_seconds": 1}
            answer = await press.call("PUT", "/v1/pages/sites/new", given)
            assert (answer.status, answer.fields) == (400, ["origin"])


NONSENSE = [
    b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 042 Odd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"nonsense\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("said", NONSENSE)
async def test_an_origin_that_speaks_nonsense_is_a_bad_gateway(local: Press, said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await local.put(origin=f"http://127.0.0.1:{port}")
        answer = await local.get()
        assert answer.status == 502
        assert answer.headers["content-type"] == "application/problem+json"
        assert str(port) not in answer.body.decode()


async def test_a_post_writes_nothing_about_pages_that_are_not_kept(local: Press) -> None:
    await local.put(vary=["X-Device"])
    local.origin.say("Content-Location: /a", "Content-Location: /b", "Location: /c", status=201)
    for n in range(5):
        await local.get(f"/{n}", "POST")
    assert (await local.service.pages.purges.state("shop")).seq == 1  # the change of the site


async def test_a_head_that_says_another_length_purges_nothing(local: Press) -> None:
    await local.get()
    local.origin.say("Content-Length: 999", body=b"")
    for _ in range(3):
        await local.get(method="HEAD", cache_control="no-cache")
    assert (await local.entry())["state"] == "fresh"


async def test_the_middle_of_a_stream_of_visitors_is_not_kept_waiting(local: Press) -> None:
    """A slow origin of one site does not hold up another's."""
    await local.put("other")
    await local.get(site="other")
    local.origin.gate = asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(local.server.url, connector=connector) as http:
        slow = [asyncio.create_task(http.get(f"/pages/shop/{n}")) for n in range(200)]
        await local.origin.arrived.wait()
        async with asyncio.timeout(2):
            assert "; hit" in (await local.get(site="other")).headers["cache-status"]
        local.origin.gate.set()
        for answer in await asyncio.gather(*slow):
            answer.close()
