"""The relay delivers into inboxes, and tries again when it cannot."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.inbox.office import Office
from tests.relay.hub import hub_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub
    from waystation.clock import ManualClock


@asynccontextmanager
async def both(clock: ManualClock, **settings: Any) -> AsyncIterator[tuple[Hub, Office]]:
    async with hub_at(clock, **settings) as hub:
        office = Office(hub.server, hub.key, clock)
        await office.call("PUT", "/v1/tenants/acme/settings", {"title": "Acme"})
        await office.call("PUT", office.base, {"title": "Main"})
        yield hub, office


async def connected(hub: Hub, source: str, status: int = 201, **inbox: Any) -> Any:
    place = {"tenant": "acme", "inbox": "main", "audience": {"kind": "everyone"}} | inbox
    body = {"name": "To the inbox", "inbox": place}
    answer = await hub.call("POST", f"/v1/sources/{source}/connections", body)
    assert answer.status == status, answer
    return answer.json


def event(**given: Any) -> bytes:
    return json.dumps({"title": "Paid", "body": "Thanks"} | given).encode()


async def test_an_event_becomes_a_message_to_the_users_that_it_names(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with both(clock, **engine) as (hub, office):
        source = await hub.source()
        audience = {"kind": "users", "path": "$.users[*].id"}
        await connected(hub, source, audience=audience, category="bills", tenant="$.tenant")
        body = event(users=[{"id": "u"}, {"id": 7}], tenant="acme", cta_uri="/orders/1")
        event_id = await hub.sent(source, body)
        assert (await hub.statuses(event_id)) == ["delivered", "delivered"]
        for uid in ("u", "7"):
            [message] = await office.messages(uid)
            assert message["message"] == {
                "title": "Paid",
                "body": "Thanks",
                "cta_uri": "/orders/1",
            }
            assert (message["category"], message["sender"]) == ("bills", "relay")


async def test_an_attempt_that_is_repeated_publishes_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(clock) as (hub, office):
        await office.counts()
        source = await hub.source()
        await connected(hub, source)
        publish = office.inboxes.publishing.publish
        tries = 0

        async def interrupted(*given: Any) -> Any:
            nonlocal tries
            tries += 1
            published = await publish(*given)
            if tries == 1:
                raise OSError("as if the process had stopped here")
            return published

        monkeypatch.setattr(office.inboxes.publishing, "publish", interrupted)
        event_id = await hub.sent(source, event())
        assert (await hub.statuses(event_id))[0] == "retrying"
        await hub.later(3_600)
        assert (await hub.statuses(event_id))[0] == "delivered"
        assert tries == 2
        assert await office.numbers() == (1, 1)
        answer = await hub.call("POST", f"/v1/events/{event_id}/replay")
        assert answer.status == 202
        await hub.settle()
        assert await office.numbers() == (2, 2)  # a replay is meant


@pytest.mark.parametrize(
    ("body", "inbox", "reason"),
    [
        (b"no json", {}, "title"),
        (event(title=""), {}, "title"),
        (event(), {"audience": {"kind": "users", "path": "body.users"}}, "nothing at"),
        (event(users=[{}]), {"audience": {"kind": "users", "path": "body.users"}}, "name users"),
        (event(), {"inbox": "other"}, "no such inbox"),
        (event(), {"tenant": "elsewhere"}, "no such tenant"),
        (event(category="*"), {}, "category"),
    ],
)
async def test_what_makes_no_message_is_tried_again_and_says_why(
    clock: ManualClock, body: bytes, inbox: dict[str, Any], reason: str
) -> None:
    async with both(clock) as (hub, office):
        source = await hub.source()
        await connected(hub, source, **inbox)
        event_id = await hub.sent(source, body)
        [delivery] = (await hub.event(event_id))["deliveries"]
        assert delivery["status"] == "retrying"
        assert reason in delivery["error"]
        assert await office.numbers() == (0, 0)


async def test_an_inbox_of_another_account_does_not_exist(clock: ManualClock) -> None:
    async with both(clock) as (hub, office):
        other = await hub.server.api_key(email="bob@example.com")
        source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=other)).json["id"]
        place = {"tenant": "acme", "inbox": "main", "audience": {"kind": "everyone"}}
        path = f"/v1/sources/{source}/connections"
        await hub.call("POST", path, {"name": "x", "inbox": place}, token=other)
        answer = await hub.send(source, event())
        await hub.settle()
        shown = await hub.call("GET", f"/v1/events/{answer.json['id']}", token=other)
        assert "no such tenant" in shown.json["deliveries"][0]["error"]
        assert await office.numbers() == (0, 0)


@pytest.mark.parametrize(
    ("inbox", "field"),
    [
        ({"audience": {"kind": "everyone", "path": "$.x"}}, "inbox.audience"),
        ({"audience": {"kind": "users"}}, "inbox.audience"),
        ({"audience": {"kind": "users", "uids": ["a"], "path": "$.x"}}, "inbox.audience"),
        ({"audience": {"kind": "users", "path": "nowhere"}}, "inbox.audience.path"),
        ({"tenant": "$.a..b"}, "inbox.tenant"),
        ({"colour": "red"}, "inbox"),
    ],
)
async def test_bad_places_are_refused_by_name(
    clock: ManualClock, inbox: dict[str, Any], field: str
) -> None:
    async with both(clock) as (hub, _):
        answer = await connected(hub, await hub.source(), status=400, **inbox)
        assert answer["errors"][0]["field"].startswith(field)


async def test_a_connection_to_an_inbox_can_be_changed(clock: ManualClock) -> None:
    async with both(clock) as (hub, office):
        await office.counts()
        source = await hub.source()
        connection = await connected(hub, source, inbox="other")
        place = {"tenant": "acme", "inbox": "main", "audience": {"kind": "everyone"}}
        shown = await hub.patch(connection, inbox=place)
        assert shown["inbox"]["inbox"] == "main"
        await hub.sent(source, event())
        assert await office.numbers() == (1, 1)
