"""Lists of events: newest first, nothing skipped, nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


async def pages(hub: Hub, path: str) -> list[list[str]]:
    """The ids on every page."""
    found, cursor = [], None
    while True:
        joint = "&" if "?" in path else "?"
        page = await hub.get(path + (f"{joint}cursor={cursor}" if cursor else ""))
        found.append([event["id"] for event in page["data"]])
        assert page["has_more"] is (page["cursor"] is not None)
        cursor = page["cursor"]
        if cursor is None:
            return found


async def sent(hub: Hub, source: str, count: int, step: float = 1.0) -> list[str]:
    ids = []
    for n in range(count):
        ids.append(await hub.sent(source, b'{"n": %d}' % n))
        hub.clock.advance(step)
    return ids


@pytest.mark.parametrize("step", [1.0, 0.0])
async def test_pages_are_whole(hub: Hub, step: float) -> None:
    """Also of events that came in the same millisecond."""
    source = await hub.source()
    ids = await sent(hub, source, 7, step)
    found = await pages(hub, f"/v1/sources/{source}/events?limit=3")
    assert [len(page) for page in found] == [3, 3, 1]
    listed = [id_ for page in found for id_ in page]
    assert sorted(listed) == sorted(ids)
    if step:
        assert listed == ids[::-1]


async def test_a_full_last_page_has_no_more(hub: Hub) -> None:
    source = await hub.source()
    await sent(hub, source, 4)
    found = await pages(hub, f"/v1/sources/{source}/events?limit=2")
    assert [len(page) for page in found] == [2, 2]


async def test_new_events_do_not_disturb_a_walk(hub: Hub) -> None:
    source = await hub.source()
    ids = await sent(hub, source, 6)
    first = await hub.get(f"/v1/sources/{source}/events?limit=3")
    await sent(hub, source, 3)
    second = await hub.get(f"/v1/sources/{source}/events?limit=3&cursor={first['cursor']}")
    listed = [event["id"] for event in first["data"] + second["data"]]
    assert listed == ids[::-1]


async def test_a_status_is_filtered_before_the_limit(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": []})
    receiver.fail()
    failed = [await hub.sent(source)]
    receiver.work()
    hub.clock.advance(1)
    delivered = await sent(hub, source, 6)
    receiver.fail()
    failed.append(await hub.sent(source))
    path = f"/v1/sources/{source}/events"
    assert await pages(hub, f"{path}?status=failed&limit=2") == [failed[::-1]]
    found = await pages(hub, f"{path}?status=delivered&limit=4")
    assert [id_ for page in found for id_ in page] == delivered[::-1]
    assert await pages(hub, f"{path}?status=filtered") == [[]]


async def test_a_stretch_of_time(hub: Hub) -> None:
    source = await hub.source()
    ids = await sent(hub, source, 5, 60)
    times = [(await hub.event(id_))["received_at"] for id_ in ids]
    path = f"/v1/sources/{source}/events"
    found = await pages(hub, f"{path}?from={times[1]}&to={times[3]}&limit=2")
    assert found == [[ids[3], ids[2]], [ids[1]]]
    assert await pages(hub, f"{path}?from={times[4]}&status=filtered") == [[ids[4]]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("cursor=nonsense", "cursor"),
        ("cursor=é", "cursor"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("status=lost", "status"),
        ("from=yesterday", "from"),
        ("to=2026-13-01", "to"),
        ("from=2026-02-01&to=2026-01-01", "from"),
    ],
)
async def test_bad_questions_are_refused(hub: Hub, query: str, field: str) -> None:
    source = await hub.source()
    answer = await hub.call("GET", f"/v1/sources/{source}/events?{query}")
    assert (answer.status, answer.fields) == (400, [field])


async def test_a_cursor_is_good_for_its_own_list_only(hub: Hub) -> None:
    one, other = await hub.source(), await hub.source()
    await sent(hub, one, 3)
    await sent(hub, other, 3)
    cursor = (await hub.get(f"/v1/sources/{one}/events?limit=1"))["cursor"]
    for path in (
        f"/v1/sources/{other}/events?limit=1&cursor={cursor}",
        f"/v1/sources/{one}/events?status=received&cursor={cursor}",
        f"/v1/sources/{one}/events?cursor={cursor[:-4]}AAAA",
    ):
        answer = await hub.call("GET", path)
        assert (answer.status, answer.fields) == (400, ["cursor"])


async def test_an_event_shows_what_became_of_it(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    [listed] = (await hub.get(f"/v1/sources/{source}/events"))["data"]
    assert listed["id"] == event_id
    assert listed["status"] == "delivered"
    assert listed["connections"] == {connection["id"]: "delivered"}
    assert listed["attempts"] == 1
    assert listed["size"] == len(b'{"n": 1}')
    for time in ("received_at", "processed_at", "delivered_at", "expires_at"):
        assert listed[time].endswith("Z")


async def test_others_see_nothing(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    other = await hub.server.api_key(email="bob@example.com")
    calls: list[tuple[str, str, Any]] = [
        ("GET", f"/v1/sources/{source}", None),
        ("PATCH", f"/v1/sources/{source}", {"name": "mine"}),
        ("DELETE", f"/v1/sources/{source}", None),
        ("GET", f"/v1/sources/{source}/events", None),
        ("GET", f"/v1/sources/{source}/connections", None),
        ("POST", f"/v1/sources/{source}/connections", {"name": "x", "destination_url": "http://a"}),
        ("GET", f"/v1/connections/{connection['id']}", None),
        ("PATCH", f"/v1/connections/{connection['id']}", {"name": "mine"}),
        ("DELETE", f"/v1/connections/{connection['id']}", None),
        ("POST", f"/v1/connections/{connection['id']}/rotate-secret", None),
        ("POST", f"/v1/connections/{connection['id']}/test", None),
        ("GET", f"/v1/connections/{connection['id']}/secrets", None),
        ("GET", f"/v1/events/{event_id}", None),
        ("GET", f"/v1/events/tail?source_id={source}", None),
    ]
    for method, path, body in calls:
        assert (await hub.call(method, path, body, token=other)).status == 404, path
    assert (await hub.call("GET", "/v1/sources", token=other)).json["data"] == []
