"""Lists: both kinds merged, nothing twice, nothing left out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.inbox.office import Office


async def walked(office: Office, limit: int, **query: Any) -> list[str]:
    """All pages of a list, with new messages between them."""
    found: list[str] = []
    cursor = None
    while True:
        given: dict[str, Any] = {**query, "limit": limit}
        given |= {"cursor": cursor} if cursor else {}
        page = await office.page(**given)
        found += [message["id"] for message in page["data"]]
        cursor = page["cursor"]
        assert page["has_more"] == (cursor is not None)
        if cursor is None:
            return found
        await office.sent("u", title="meanwhile")
        await office.sent(title="meanwhile")


@pytest.mark.parametrize("limit", [1, 3, 4])
async def test_paging_while_messages_arrive_repeats_and_loses_nothing(
    office: Office, limit: int
) -> None:
    await office.counts()
    rng = random.Random(limit)
    sent = [await office.sent(*(["u"] if rng.random() < 0.5 else [])) for _ in range(9)]
    assert await walked(office, limit) == sent[::-1]


async def test_lists_by_status_and_category(office: Office) -> None:
    await office.counts()
    ids: dict[tuple[str, str], list[str]] = {}
    for category in ("a", "b"):
        for to in (["u"], []):
            for state in ("unread", "read", "archived"):
                id_ = await office.sent(*to, category=category)
                ids.setdefault((category, state), []).append(id_)
                if state != "unread":
                    await office.mark(id_, "read" if state == "read" else "archive")
    for (category, state), expected in ids.items():
        found = await office.ids(status=state, category=category)
        assert sorted(found) == sorted(expected)
        assert len(await office.ids(status=state)) == 4
    assert len(await office.ids()) == 8
    assert len(await walked(office, 2, status="unread", category="a")) == 2


async def test_where_few_of_many_fit_pages_are_short_and_lead_on(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.reading._MOST_EXAMINED", 5)
    wanted = await local.sent("u", category="rare")
    for _ in range(12):
        await local.sent("u")
    pages, cursor, found = 0, None, []
    while True:
        page = await local.page(category="rare", **({"cursor": cursor} if cursor else {}))
        pages += 1
        found += page["data"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert (pages, [message["id"] for message in found]) == (3, [wanted])


async def test_a_cursor_of_another_list_is_refused(local: Office) -> None:
    for _ in range(3):
        await local.sent("u", "v")
    cursor = (await local.page(limit=1))["cursor"]
    for uid, query in (("v", ""), ("u", "status=unread&")):
        path = local.user(uid, f"messages?{query}cursor={cursor}")
        assert (await local.call("GET", path)).status == 400
    path = local.user("u", f"messages?cursor={cursor}x")
    answer = await local.call("GET", path)
    assert (answer.status, answer.fields) == (400, ["cursor"])


@pytest.mark.parametrize(
    ("query", "field"), [("status=new", "status"), ("limit=0", "limit"), ("limit=101", "limit")]
)
async def test_bad_queries_are_refused_by_name(local: Office, query: str, field: str) -> None:
    answer = await local.call("GET", local.user("u", f"messages?{query}"))
    assert (answer.status, answer.fields) == (400, [field])


async def test_a_message_as_its_reader_sees_it(office: Office) -> None:
    now = office.clock()
    content = {"title": "Paid", "body": {"amount": 3}, "cta_uri": "/orders/3"}
    await office.sent("u", message=content, category="bills", type="receipt", ttl="1h")
    [shown] = await office.messages()
    assert shown.pop("created_at").startswith("20")
    assert shown.pop("expires_at").startswith("20")
    assert shown.pop("id")
    assert shown == {
        "audience": "users",
        "sender": "tests",
        "category": "bills",
        "type": "receipt",
        "message": content,
        "read": False,
        "read_at": None,
        "seen": False,
        "archived": False,
    }
    assert now == office.clock()
