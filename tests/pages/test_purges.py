"""Purges: by path, tag, prefix and everything, soft and hard, in every process at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.press import Press, press_at
from tests.support.faults import Faults
from waystation.pages.keeping.purges import PurgeBook
from waystation.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.press import Origin
    from waystation.clock import ManualClock

PATHS = ("/blog/1", "/blog/2", "/blog/2?page=2", "/about")
ABOUT = [
    ({"path": "/blog/2"}, {"/blog/2", "/blog/2?page=2"}),
    ({"path": "/blog/2?page=2"}, {"/blog/2?page=2"}),
    ({"tag": "post"}, {"/blog/1", "/blog/2", "/blog/2?page=2"}),
    ({"prefix": "/blog/"}, {"/blog/1", "/blog/2", "/blog/2?page=2"}),
    ({"all": True}, set(PATHS)),
    ({"path": "/elsewhere"}, set()),
]


async def fill(press: Press) -> None:
    for path in PATHS:
        press.origin.say(*(["Cache-Tag: post, site"] if "blog" in path else []))
        await press.get(path)
    press.origin.say()


@pytest.mark.parametrize(("given", "purged"), ABOUT)
async def test_a_hard_purge_has_pages_generated_before_they_are_used(
    press: Press, given: dict[str, Any], purged: set[str]
) -> None:
    await fill(press)
    await press.revalidate(**given, mode="hard")
    for path in PATHS:
        how = await press.how(path)
        assert ("detail=purged" in how) is (path in purged), (path, how)
        assert ("fwd=stale" in how) is (path in purged), (path, how)
    assert [("; hit" in await press.how(path)) for path in PATHS] == [True] * 4


@pytest.mark.parametrize(("given", "purged"), ABOUT)
async def test_a_soft_purge_serves_old_pages_while_new_ones_are_generated(
    local: Press, given: dict[str, Any], purged: set[str]
) -> None:
    await fill(local)
    await local.revalidate(**given)
    for path in PATHS:
        how = await local.how(path)
        assert "; hit" in how
        assert ("detail=purged" in how) is (path in purged)
    await local.settle()
    assert local.origin.count == 4 + len(purged)


async def test_a_soft_purge_of_a_page_that_must_be_validated_has_it_validated(local: Press) -> None:
    local.origin.say('ETag: "x"', "Cache-Control: max-age=60, must-revalidate")
    await local.get()
    await local.revalidate(all=True)
    local.origin.say('ETag: "x"', status=304)
    assert "fwd=stale" in await local.how()
    assert local.origin.last.headers["If-None-Match"] == '"x"'


async def test_after_a_hard_purge_an_old_page_is_not_even_a_spare(local: Press) -> None:
    await local.get()
    await local.revalidate(all=True, mode="hard")
    local.origin.fail()
    assert (await local.get()).status == 503


async def test_a_page_that_was_begun_before_a_purge_does_not_count_after_it(press: Press) -> None:
    """It shows what there was before."""
    import asyncio

    press.origin.gate = asyncio.Event()
    slow = asyncio.create_task(press.get())
    await press.origin.arrived.wait()
    await press.revalidate(path="/p", mode="hard")
    press.origin.gate.set()
    assert (await slow).body == b"page 1 of /p"
    assert await press.text() == "page 2 of /p"


async def test_a_purge_counts_at_once_in_another_process(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    where = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with press_at(clock, origin, **where) as one, press_at(clock, origin, **where) as other:
        await one.get()
        assert "; hit" in await other.how()
        await one.revalidate(path="/p", mode="hard")
        assert await other.text() == "page 2 of /p"
        assert await one.text() == "page 2 of /p"


async def test_where_reads_are_far_a_purge_is_over_when_nobody_can_rely_on_older_ones(
    clock: ManualClock,
) -> None:
    async with await open_store("sqlite://:memory:", [_pages()], clock=clock) as store:
        far: Any = Faults(store)
        far.near = False
        one, other = PurgeBook(far), PurgeBook(far)
        for book in (one, other):
            book.state_seconds = 0.2
        assert (await other.state("shop")).seq == 0
        await one.purge("shop", "all", "", hard=True, settle=False)
        assert (await other.state("shop")).seq == 0
        await one.purge("shop", "all", "", hard=True)
        assert (await other.state("shop")).seq == 2


def _pages() -> Any:
    from waystation.pages.tables import pages

    return pages


async def test_a_purge_is_one_write_however_many_pages_it_is_about(clock: ManualClock) -> None:
    async with await open_store("sqlite://:memory:", [_pages()], clock=clock) as real:
        store: Any = Faults(real)
        written: list[int] = []

        async def transact(call: Any, *actions: Any, **named: Any) -> Any:
            written.append(len(actions))
            return await call(*actions, **named)

        store.around["transact"] = transact
        book = PurgeBook(store)
        await book.purge("shop", "tag", "post", hard=False)
        assert written == [2]


async def test_many_prefixes_are_merged_and_purge_no_less(local: Press) -> None:
    await local.get("/a/150/x")
    await local.get("/b")
    book = local.service.pages.purges
    for n in range(151):
        await book.purge("shop", "prefix", f"/a/{n}/", hard=True)
    assert len((await book.state("shop")).prefixes) <= 100
    assert "detail=purged" in await local.how("/a/150/x")
    assert "; hit" in await local.how("/b")


async def test_purges_at_the_same_time_all_count(press: Press) -> None:
    import asyncio

    await fill(press)
    await asyncio.gather(*(press.revalidate(path=path, mode="hard") for path in PATHS))
    for path in PATHS:
        assert "detail=purged" in await press.how(path)


async def test_a_dry_run_says_what_a_purge_would_be_about_and_purges_nothing(press: Press) -> None:
    await fill(press)
    said = await press.revalidate(tag="post", dry_run=True)
    assert (said["matched"], said["complete"]) == (3, True)
    assert set(said["urls"]) == {"/blog/1", "/blog/2", "/blog/2?page=2"}
    assert "; hit" in await press.how("/blog/1")


async def test_the_tags_of_a_site_are_those_of_all_its_pages(local: Press) -> None:
    await local.put(tags=["shop"])
    local.origin.say("Surrogate-Key: a b")
    await local.get()
    assert (await local.entry())["tags"] == ["shop", "a", "b"]
    await local.revalidate(tag="shop", mode="hard")
    assert "detail=purged" in await local.how()


async def test_tags_are_for_caches_and_not_for_visitors(local: Press) -> None:
    local.origin.say("Cache-Tag: secret", "Surrogate-Key: secret")
    for answer in (await local.get(), await local.get(), await local.get(method="POST")):
        assert "secret" not in str(answer.headers)


async def test_a_page_with_too_many_tags_could_not_be_purged_and_is_not_kept(local: Press) -> None:
    local.origin.say("Cache-Tag: " + ",".join(f"t{n}" for n in range(101)))
    assert "detail=tags" in await local.how()
    assert "; hit" not in await local.how()


BAD = [
    ({}, "path"),
    ({"path": "/a", "tag": "b"}, "path"),
    ({"path": "no slash"}, "path"),
    ({"prefix": "/caf\u00e9"}, "prefix"),
    ({"path": "/a", "mode": "gentle"}, "mode"),
    ({"path": 7}, "path"),
    ({"tag": ""}, "tag"),
    ({"other": 1}, "other"),
]


@pytest.mark.parametrize(("given", "field"), BAD)
async def test_a_purge_of_nothing_in_particular_is_refused(
    local: Press, given: dict[str, Any], field: str
) -> None:
    answer = await local.call("POST", f"{local.base}/revalidate", given)
    assert answer.status == 400
    assert field in answer.body.decode()
