"""Counts are exact: after every mark, at every instant, and however often a thing is done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.inbox.office import Office


async def test_messages_to_a_user_and_to_everyone_are_counted_together(office: Office) -> None:
    await office.counts()
    await office.sent("u", "v")
    await office.sent()
    counts = await office.counts()
    assert counts == {"total": 2, "unread": 2, "unseen": 2, "categories": {}}
    assert await office.numbers("v") == (2, 2)


@pytest.mark.parametrize("audience", [["u"], []])
async def test_many_at_once_who_read_one_message_count_once(
    office: Office, audience: list[str]
) -> None:
    await office.counts()
    id_ = await office.sent(*audience)
    await office.sent("u")
    await asyncio.gather(*(office.mark(id_, "read") for _ in range(8)))
    assert await office.numbers() == (2, 1)
    assert await office.drift() == []


@pytest.mark.parametrize("audience", [["u"], []])
async def test_read_unread_and_read_again_net_one(office: Office, audience: list[str]) -> None:
    await office.counts()
    id_ = await office.sent(*audience, category="news")
    await office.sent("u", category="news")
    for mark, unread in (("read", 1), ("unread", 2), ("unread", 2), ("read", 1), ("read", 1)):
        await office.mark(id_, mark)
        assert await office.numbers() == (2, unread)
        assert (await office.counts())["categories"]["news"] == {"total": 2, "unread": unread}
    assert await office.drift() == []


async def test_what_was_never_sent_cannot_be_read(office: Office) -> None:
    await office.sent("v")
    await office.counts()
    for strange in ("nothing", "m%23x", "0" * 20):
        await office.mark(strange, "read", status=404)
    assert await office.numbers() == (0, 0)


async def test_anothers_message_cannot_be_read(office: Office) -> None:
    id_ = await office.sent("v")
    await office.mark(id_, "read", "u", status=404)
    assert await office.numbers("v") == (1, 1)


@pytest.mark.parametrize("audience", [["u"], []])
async def test_archived_messages_are_not_counted(office: Office, audience: list[str]) -> None:
    await office.counts()
    id_ = await office.sent(*audience)
    assert (await office.mark(id_, "archive"))["total"] == 0
    assert await office.ids() == []
    assert await office.ids(status="archived") == [id_]
    await office.mark(id_, "read")
    assert await office.numbers() == (0, 0)
    await office.mark(id_, "unarchive")
    assert await office.numbers() == (1, 0)
    assert await office.drift() == []


@pytest.mark.parametrize("audience", [["u"], []])
async def test_a_deleted_message_is_gone_for_its_reader_alone(
    office: Office, audience: list[str]
) -> None:
    await office.counts("u")
    await office.counts("v")
    id_ = await office.sent(*audience, *(["v"] if audience else []))
    await office.delete(id_)
    await office.delete(id_)
    assert await office.numbers() == (0, 0)
    assert await office.numbers("v") == (1, 1)
    await office.mark(id_, "read", status=404)
    assert await office.drift() == []


async def test_everything_is_read_by_one_mark(office: Office) -> None:
    await office.counts()
    for category in ("news", "bills", None):
        await office.sent("u", category=category)
        await office.sent(category=category)
    answer = await office.call("POST", office.user("u", "read-all"))
    assert (answer.json["total"], answer.json["unread"], answer.json["unseen"]) == (6, 0, 0)
    assert {message["read"] for message in await office.messages()} == {True}
    await office.sent("u", category="news")
    await office.sent(category="bills")
    counts = await office.counts()
    assert (counts["unread"], counts["categories"]["news"]["unread"]) == (2, 1)
    assert await office.drift() == []


async def test_a_category_is_read_by_one_mark(office: Office) -> None:
    await office.counts()
    for category in ("news", "bills"):
        await office.sent("u", category=category)
        await office.sent(category=category)
    answer = await office.call("POST", office.user("u", "read-all"), {"category": "news"})
    assert answer.json["unread"] == answer.json["unseen"] == 2
    assert answer.json["categories"]["news"] == {"total": 2, "unread": 0}
    assert len(await office.ids(status="unread", category="bills")) == 2
    assert await office.drift() == []


async def test_what_is_set_back_to_unread_stays_so_until_all_is_read_again(office: Office) -> None:
    await office.counts()
    ids = [await office.sent("u"), await office.sent()]
    await office.call("POST", office.user("u", "read-all"))
    for n, id_ in enumerate(ids, start=1):
        await office.mark(id_, "unread")
        assert await office.numbers() == (2, n)
    await office.call("POST", office.user("u", "read-all"))
    assert await office.numbers() == (2, 0)
    assert await office.drift() == []


async def test_seen_is_not_read(office: Office) -> None:
    await office.counts()
    await office.sent("u", category="news")
    await office.sent()
    answer = await office.call("POST", office.user("u", "seen"))
    assert (answer.json["unread"], answer.json["unseen"]) == (2, 0)
    id_ = await office.sent("u")
    assert (await office.counts())["unseen"] == 1
    await office.mark(id_, "read")
    assert (await office.counts())["unseen"] == 0
    assert [message["seen"] for message in await office.messages()] == [True] * 3
    assert await office.drift() == []


async def test_what_has_expired_does_not_count_although_it_is_still_there(office: Office) -> None:
    await office.counts()
    read = await office.sent("u", ttl="10s", category="news")
    await office.sent("u", ttl="10s")
    public = await office.sent(ttl="10s", category="news")
    await office.sent("u", ttl="20s", category="news")
    await office.mark(read, "read")
    await office.mark(public, "read")
    office.clock.advance(9)
    assert await office.numbers() == (4, 2)
    office.clock.advance(1)
    counts = await office.counts()
    assert (counts["total"], counts["unread"], counts["unseen"]) == (1, 1, 1)
    assert counts["categories"] == {"news": {"total": 1, "unread": 1}}
    assert len(await office.ids()) == 1
    office.clock.advance(10)
    assert await office.numbers() == (0, 0)
    for id_ in (read, public):
        await office.mark(id_, "read", status=404)
    await office.inboxes.books.fold(office.reader())
    await office.inboxes.books.fold(office.reader())
    assert await office.numbers() == (0, 0)
    assert await office.drift() == []


async def test_after_all_was_read_what_expires_takes_nothing_else_along(office: Office) -> None:
    await office.counts()
    await office.sent("u", ttl="10s")
    await office.sent("u", ttl="60s")
    await office.call("POST", office.user("u", "read-all"))
    office.clock.advance(11)
    await office.inboxes.books.fold(office.reader())
    await office.sent("u")
    assert await office.numbers() == (2, 1)
    assert await office.drift() == []


async def test_categories_and_what_has_none_add_up_to_the_total(office: Office) -> None:
    for category in ("a", "b", None, "a"):
        await office.sent("u", category=category)
    counts = await office.counts()
    named = counts["categories"].values()
    assert counts["total"] == 4 == sum(n["total"] for n in named) + 1


async def test_a_new_user_sees_only_what_comes_after_them(office: Office) -> None:
    await office.sent(title="old")
    await office.sent(title="for all", backfill=True)
    await office.counts("new")
    await office.sent(title="new")
    assert [m["message"]["title"] for m in await office.messages("new")] == ["new", "for all"]
    assert await office.numbers("new") == (2, 2)
