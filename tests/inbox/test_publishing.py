"""Publishing: to many, in parts, once; and taking it back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.inbox.office import PLACE
from waystation.inbox.tables import Audiences, Publication, PublicMessage, UserMessage

if TYPE_CHECKING:
    from tests.inbox.office import Office


def users(count: int, prefix: str = "u") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


async def test_a_message_to_everyone_is_one_message(office: Office) -> None:
    for uid in users(5):
        await office.counts(uid)
    await office.sent(category="news")
    found = [m async for m in office.store.iterate(PLACE.messages())]
    assert len(found) == 1
    for uid in users(5):
        page = await office.store.query(office.reader(uid).messages())
        assert page.items == []
        assert await office.numbers(uid) == (1, 1)


async def test_a_message_to_many_reaches_each_of_them_once(office: Office) -> None:
    uids = users(60)
    published = await office.publish(*uids, *uids, category="news")
    await office.settle()
    assert published["recipients"] == 60
    shown = (await office.call("GET", f"{office.base}/messages/{published['id']}")).json
    assert (shown["status"], shown["delivered"]) == ("published", 60)
    for uid in (uids[0], uids[30], uids[-1]):
        assert await office.ids(uid) == [published["id"]]
        assert await office.numbers(uid) == (1, 1)
        assert await office.drift(uid) == []


async def test_more_users_can_be_added(office: Office) -> None:
    id_ = await office.sent("a")
    path = f"{office.base}/messages/{id_}/users"
    for _ in range(2):
        answer = await office.call("POST", path, {"uids": ["a", "b", *users(30)]})
        assert answer.status == 202, answer
    await office.settle()
    assert await office.numbers("a") == (1, 1)
    assert await office.numbers("b") == (1, 1)
    assert await office.numbers("u29") == (1, 1)


async def test_adding_users_counts_towards_the_plan(local: Office) -> None:
    eve = str((await local.server.sign_up("eve@example.com"))["access_token"])
    base = "/v1/tenants/eve/inboxes/main"
    await local.call("PUT", "/v1/tenants/eve/settings", {"title": "x"}, token=eve)
    await local.call("PUT", base, {"title": "x"}, token=eve)
    body = {"audience": {"kind": "users", "uids": ["a"]}, "sender": "x", "message": {"title": "y"}}
    id_ = (await local.call("POST", f"{base}/messages", body, token=eve)).json["id"]
    path = f"{base}/messages/{id_}/users"
    statuses = [
        (await local.call("POST", path, {"uids": ["b"]}, token=eve)).status for _ in range(101)
    ]
    assert statuses == [202] * 99 + [429] * 2


async def test_a_copy_does_not_say_who_else_has_it(office: Office) -> None:
    await office.sent("u", "v")
    [copy] = (await office.store.query(office.reader().messages())).items
    assert copy.audiences == Audiences("users")


@pytest.mark.parametrize("audience", [["u", "v"], []])
async def test_the_same_host_system_id_is_the_same_message(
    office: Office, audience: list[str]
) -> None:
    await office.counts()
    first = await office.publish(*audience, host_system_id="order 1")
    again = await office.publish(*audience, host_system_id="order 1", status=200)
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert await office.numbers() == (1, 1)
    await office.publish(*audience, title="Another", host_system_id="order 1", status=409)


async def test_many_at_once_with_the_same_host_system_id_publish_once(office: Office) -> None:
    await office.counts()
    audience = {"kind": "everyone"}
    body = {"audience": audience, "sender": "x", "message": {"title": "y"}, "host_system_id": "z"}
    answers = await asyncio.gather(
        *(office.call("POST", f"{office.base}/messages", body) for _ in range(6))
    )
    assert {answer.status for answer in answers} <= {200, 201}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert await office.numbers() == (1, 1)


@pytest.mark.parametrize("audience", [["u", "v"], [], [f"u{n}" for n in range(30)] + ["u", "v"]])
async def test_a_withdrawn_message_is_gone_for_everyone(
    office: Office, audience: list[str]
) -> None:
    for uid in ("u", "v"):
        await office.counts(uid)
    id_ = await office.sent(*audience, category="news")
    await office.settle()
    kept = await office.sent("u", "v")
    await office.mark(id_, "read", "u")
    await office.withdraw(id_)
    for uid in ("u", "v"):
        assert await office.ids(uid) == [kept]
        assert await office.numbers(uid) == (1, 1)
        await office.mark(id_, "read", uid, status=404)
    await office.settle()
    for uid in ("u", "v"):
        assert await office.numbers(uid) == (1, 1)
        assert await office.drift(uid) == []
    assert await office.inboxes.broadcasts.recount(PLACE, fix=False) == {}


async def test_a_withdrawal_counts_at_once_while_copies_are_still_there(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = await local.sent("u", "v")

    async def later(_: str) -> None: ...

    monkeypatch.setattr(local.inboxes.distribution, "hurry", later)
    await local.withdraw(id_)
    assert await local.store.get(local.reader().message(id_)) is not None
    assert await local.counts() == {"total": 0, "unread": 0, "unseen": 0, "categories": {}}
    assert await local.ids() == []
    await local.mark(id_, "read", status=404)


async def test_what_was_left_half_published_is_finished(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had ended after the message was written down."""

    async def died(_: str) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(office.inboxes.distribution, "hurry", died)
        published = await office.publish(*users(50), status=201)
    assert published["status"] == "publishing"
    office.clock.advance(61)
    await office.settle()
    await office.settle()
    for uid in ("u0", "u49"):
        assert await office.numbers(uid) == (1, 1)


async def test_a_list_that_is_worked_through_again_gives_nobody_a_second_copy(
    office: Office,
) -> None:
    published = await office.publish(*users(30))
    await office.delete(published["id"], "u1")
    await office.mark(published["id"], "read", "u2")
    publication = await office.store.get(Publication.key(published["id"]))
    assert publication is not None
    await office.inboxes.distribution._give(publication, users(30))
    publication.status = "publishing"
    await office.store.put(publication)
    await office.inboxes.distribution._give(publication, users(30))
    assert await office.numbers("u0") == (1, 1)
    assert await office.numbers("u1") == (0, 0)
    assert await office.numbers("u2") == (1, 0)


async def test_messages_live_as_long_as_their_type_says(office: Office) -> None:
    config = {"title": "Main", "ttl": {"default": "2h", "alert": "1m"}}
    assert (await office.call("PUT", office.base, config)).status == 200
    office.clock.advance(3)
    now = office.store.now()
    lifetimes = []
    for given in ({"type": "alert"}, {"type": "other"}, {"type": "alert", "ttl": "5s"}):
        id_ = await office.sent("u", **given)
        message = await office.store.get(UserMessage.key("acme", "u", "main", id_))
        assert message is not None
        assert message.expiredat is not None
        lifetimes.append(message.expiredat - now)
    assert lifetimes == [60, 7_200, 5]


async def test_there_is_a_bound_to_live_messages_for_everyone(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.broadcasts.MOST_LIVE", 3)
    for _ in range(3):
        await local.sent(ttl="10s")
    await local.publish(status=409)
    local.clock.advance(11)
    await local.publish()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"audience": {"kind": "some"}}, "audience"),
        ({"audience": {"kind": "users", "uids": []}}, "audience.uids"),
        ({"audience": {"kind": "users", "uids": ["a#b"]}}, "audience.uids[0]"),
        ({"audience": {"kind": "users", "uids": ["a", "$public"]}}, "audience.uids[1]"),
        ({"category": "*"}, "category"),
        ({"category": "a#b"}, "category"),
        ({"ttl": "soon"}, "ttl"),
        ({"ttl": "6000d"}, "ttl"),
        ({"message": {"title": ""}}, "message.title"),
        ({"message": {"title": "x", "cta_uri": "javascript:alert(1)"}}, "message.cta_uri"),
        ({"message": {"title": "x", "cta_uri": "//evil.example"}}, "message.cta_uri"),
        ({"message": {"title": "x", "body": "y" * 20_000}}, "message.body"),
        ({"sender": ""}, "sender"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_bad_messages_are_refused_by_name(
    local: Office, change: dict[str, Any], field: str
) -> None:
    body = {"audience": {"kind": "everyone"}, "sender": "x", "message": {"title": "y"}} | change
    answer = await local.call("POST", f"{local.base}/messages", body)
    assert answer.status == 400
    assert any(field in named for named in answer.fields), answer.json
    assert [m async for m in local.store.iterate(PLACE.messages())] == []


async def test_there_is_a_bound_to_categories(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.tenants.MOST_CATEGORIES", 2)
    for category in ("a", "b", "a"):
        await local.sent("u", category=category)
    answer = await local.publish("u", category="c", status=400)
    assert answer["errors"][0]["field"] == "category"


async def test_ids_of_one_process_are_in_order_whatever_its_clock_does() -> None:
    from waystation.ids import OrderedIds

    ids = OrderedIds()
    times = [1_700_000_000.0] * 2_000 + [1_699_999_999.0] * 10 + [1_700_000_001.0]
    found = [ids.next(now) for now in times]
    assert found == sorted(set(found))
    assert {len(id_) for id_ in found} == {20}


async def test_messages_that_are_published_at_once_have_their_own_numbers(office: Office) -> None:
    await office.counts()
    await asyncio.gather(*(office.sent() for _ in range(10)))
    live = await office.inboxes.broadcasts.live(PLACE, fresh=True)
    assert sorted(entry.number for entry in live.entries) == list(range(1, 11))
    assert await office.numbers() == (10, 10)
    assert isinstance((await office.store.get(PLACE.message(live.entries[0].id))), PublicMessage)
