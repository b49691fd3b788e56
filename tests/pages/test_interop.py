"""A service in Node on the same table: each respects the other's leases and reads its pages."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.pages.press import Press, press_at
from tests.support.parts import missing
from waystation.pages.keeping.places import Place
from waystation.pages.tables import cache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.pages.press import Origin
    from waystation.clock import ManualClock

PROGRAM = Path(__file__).with_name("node_service.mjs")
MODULES = Path(__file__).parents[2] / ".tools" / "node_modules"
PLACE = Place("shop", "/p")


@pytest.fixture
def engine(
    dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch, request: Any
) -> dict[str, Any]:
    """The table is called what the other service calls it."""
    name = f"isr-{abs(hash(request.node.name)) % 10**10}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    return {
        "store": "dynamodb://eu-west-1",
        "queue": "sqs://eu-west-1",
        "aws_endpoint_url": moto_url,
        "env": name,
        "pages_table": f"FaceTheory_{name}",
        "allow_networks": ["127.0.0.0/8"],
    }


@pytest.fixture
async def press(clock: ManualClock, origin: Origin, engine: dict[str, Any]) -> AsyncIterator[Press]:
    async with press_at(clock, origin, **engine) as running:
        running.service.pages.regeneration.wait_seconds = 0.0
        yield running


@pytest.fixture
def node(press: Press, dynamodb_url: str) -> Callable[..., Awaitable[Any]]:
    """Has the service in Node do something to the page's rows."""
    program = shutil.which("node")
    if program is None or not (MODULES / "@aws-sdk" / "client-dynamodb").is_dir():
        missing("AWS's SDK for JavaScript", "install Node and npm, then run make setup")
    table = press.store.table_name(cache)

    async def run(command: str, *arguments: object) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(program, str(PROGRAM), str(MODULES.parent), dynamodb_url, table, command, PLACE.pk),
            *map(str, arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return msgspec.json.decode(out)

    return run


async def test_the_table_is_called_what_the_settings_say(press: Press) -> None:
    assert press.store.table_name(cache).startswith("FaceTheory_isr-")


async def test_we_respect_a_lease_that_node_holds(press: Press, node: Any) -> None:
    now = press.store.now()
    assert (await node("acquire", "node-token", now, 30))["acquired"]
    answer = await press.get()
    assert "detail=busy" in answer.headers["cache-status"]
    assert await press.row(PLACE.meta) is None
    press.clock.advance(32)
    assert "stored" in await press.how()


async def test_node_respects_a_lease_that_we_hold(press: Press, node: Any) -> None:
    press.origin.gate = asyncio.Event()
    ours = asyncio.create_task(press.get())
    await press.origin.arrived.wait()
    now = press.store.now()
    assert not (await node("acquire", "node-token", now, 30))["acquired"]
    press.origin.gate.set()
    await ours
    assert (await node("acquire", "node-token", now, 30))["acquired"]


async def test_node_reads_what_we_publish(press: Press, node: Any) -> None:
    press.origin.say('ETag: "ours"')
    await press.get()
    row = await node("read", "META")
    assert row["generated_at"] == {"N": str(press.store.now())}
    assert row["revalidate_seconds"] == {"N": "60"}
    assert row["etag"] == {"S": '"ours"'}
    assert await press.service.pages.blobs.get(row["s3_key"]["S"]) == b"page 1 of /p"


async def test_we_serve_what_node_publishes(press: Press, node: Any) -> None:
    now = press.store.now()
    await press.service.pages.blobs.put("their/page.html", b"<p>from node</p>")
    await node("acquire", "t", now, 30)
    await node("publish", "t", "their/page.html", now, 60)
    answer = await press.get()
    assert answer.body == b"<p>from node</p>"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["etag"] == '"from-node"'
    assert (await press.get(if_none_match='"from-node"')).status == 304
    assert press.origin.count == 0


async def test_we_regenerate_it_when_it_is_stale_and_keep_what_is_theirs(
    press: Press, node: Any
) -> None:
    now = press.store.now()
    await press.service.pages.blobs.put("their/page.html", b"<p>from node</p>")
    await node("acquire", "t", now, 30)
    await node("publish", "t", "their/page.html", now, 60)
    press.clock.advance(60)
    assert await press.text() == "<p>from node</p>"
    await press.settle()
    assert await press.text() == "page 1 of /p"
    assert (await node("read", "META"))["template"] == {"S": "v7"}
    assert (await node("read", "LOCK"))["worker"] == {"S": "node"}


async def test_a_lock_that_lost_its_fence_does_not_let_an_older_page_win(
    press: Press, node: Any
) -> None:
    for _ in range(3):
        await press.revalidate(all=True, mode="hard")
        await press.get()
    before = int((await node("read", "META"))["fence"]["N"])
    await node("putLock", "t", press.store.now() - 5)
    await press.revalidate(all=True, mode="hard")
    assert "stored" in await press.how()
    assert int((await node("read", "META"))["fence"]["N"]) > before


async def test_a_purge_is_about_their_pages_too(press: Press, node: Any) -> None:
    now = press.store.now()
    await press.service.pages.blobs.put("their/page.html", b"<p>from node</p>")
    await node("acquire", "t", now, 30)
    await node("publish", "t", "their/page.html", now, 60)
    await press.get()
    press.clock.advance(5)
    await press.revalidate(path="/p", mode="hard")
    assert await press.text() == "page 1 of /p"
