"""Replays: new deliveries beside the old ones, through the rules of now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.relay.hub import hub_at
from tests.support.faults import Faults, relay_on
from tests.support.receiver import Reaction
from waystation.relay.tables import Replay

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver
    from tests.support.site import Answer
    from waystation.clock import ManualClock


async def replay(hub: Hub, event_id: str, **more: Any) -> Answer:
    answer = await hub.call(
        "POST",
        f"/v1/events/{event_id}/replay",
        {"connection_ids": more.pop("connection_ids", [])},
        **more,
    )
    await hub.settle()
    return answer


async def bulk(hub: Hub, source: str, **more: Any) -> Any:
    answer = await hub.call("POST", "/v1/events/replay", {"source_id": source, **more})
    assert answer.status == 202, answer
    await hub.settle()
    return await hub.get(f"/v1/replays/{answer.json['id']}")


async def test_an_event_is_delivered_once_more(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    answer = await replay(hub, event_id)
    assert answer.status == 202
    assert len(receiver.got) == 2
    event = await hub.event(event_id)
    assert [d["status"] for d in event["deliveries"]] == ["delivered", "delivered"]
    assert [d["replay_id"] for d in event["deliveries"]] == [None, answer.json["id"]]
    assert [len(d["attempts"]) for d in event["deliveries"]] == [1, 1]
    first, second = (got.headers["webhook-id"] for got in receiver.got)
    assert first != second
    assert receiver.got[1].headers["x-waystation-event"] == event_id


async def test_a_replay_needs_no_body(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    assert (await hub.call("POST", f"/v1/events/{event_id}/replay")).status == 202
    await hub.settle()
    assert len(receiver.got) == 2


async def test_a_replay_mends_a_failure(hub: Hub, receiver: Receiver) -> None:
    receiver.answers = [Reaction(500)]
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": []})
    event_id = await hub.sent(source)
    assert (await hub.statuses(event_id))[0] == "failed"
    await replay(hub, event_id)
    assert await hub.statuses(event_id) == ["delivered", "failed", "delivered"]


async def test_a_replay_that_fails_leaves_what_was_delivered(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": []})
    event_id = await hub.sent(source)
    receiver.fail()
    await replay(hub, event_id)
    assert await hub.statuses(event_id) == ["delivered", "delivered", "failed"]


async def test_a_replay_goes_through_the_rules_of_now(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    no = [{"path": "$.n", "operator": "equals", "value": 2}]
    await hub.patch(connection, filters=no)
    await replay(hub, event_id)
    assert len(receiver.got) == 1
    rules = [{"from": "$.n", "to": "m"}]
    await hub.patch(connection, filters=None, transform={"type": "field_map", "rules": rules})
    await replay(hub, event_id)
    assert receiver.got[-1].body == b'{"m":1}'


async def test_a_replay_to_some_connections(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/a")
    event_id = await hub.sent(source)
    later = await hub.connect(source, f"{receiver.url}/b")
    answer = await replay(hub, event_id, connection_ids=[later["id"]])
    assert [d["connection_id"] for d in answer.json["deliveries"]] == [later["id"]]
    assert [got.path for got in receiver.got] == ["/a", "/b"]
    wrong = await replay(hub, event_id, connection_ids=["conn_x"])
    assert (wrong.status, wrong.fields) == (400, ["connection_ids[0]"])


async def test_a_replay_under_a_key_happens_once(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    first = await replay(hub, event_id, key="once")
    second = await replay(hub, event_id, key="once")
    assert first.json["id"] == second.json["id"]
    assert len(receiver.got) == 2


async def test_replays_at_the_same_moment_are_all_made(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    answers = await asyncio.gather(*(replay(hub, event_id) for _ in range(5)))
    await hub.settle()
    assert {a.status for a in answers} == {202}
    assert len(receiver.got) == 6


async def test_many_are_replayed_with_progress(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url, retry={"schedule": []})
    for _ in range(8):
        await hub.sent(source)
    receiver.work()
    delivered = await hub.sent(source)
    got = len(receiver.got)
    done = await bulk(hub, source, status="failed", connection_ids=[connection["id"]])
    assert (done["status"], done["events"], done["deliveries"]) == ("done", 8, 8)
    assert len(receiver.got) == got + 8
    assert len((await hub.event(delivered))["deliveries"]) == 1
    listed = await hub.get(f"/v1/sources/{source}/events?status=delivered")
    assert len(listed["data"]) == 9


async def test_more_than_a_page(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    for _ in range(60):
        await hub.send(source)
        hub.clock.advance(0.001)
    await hub.connect(source, receiver.url)
    done = await bulk(hub, source)
    assert (done["status"], done["events"]) == ("done", 60)
    assert len(receiver.got) == 60


async def test_a_stretch_of_time_and_single_events(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    ids = []
    for _ in range(4):
        ids.append(await hub.sent(source))
        hub.clock.advance(60)
    times = [(await hub.event(id_))["received_at"] for id_ in ids]
    done = await bulk(hub, source, **{"from": times[1], "to": times[2]})
    assert done["events"] == 2
    done = await bulk(hub, source, event_ids=[ids[0], ids[3], "evt_nobody"])
    assert done["events"] == 2
    assert len(receiver.got) == 8


async def test_a_replay_does_not_chase_new_events(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    await hub.sent(source)
    hub.clock.advance(1)
    answer = await hub.call("POST", "/v1/events/replay", {"source_id": source})
    hub.clock.advance(1)
    await hub.sent(source)
    assert (await hub.get(f"/v1/replays/{answer.json['id']}"))["events"] == 1


async def test_a_replay_that_was_interrupted_goes_on_and_repeats_nothing(
    clock: ManualClock, receiver: Receiver
) -> None:
    """Each step is written down after it: the step that is repeated makes no second delivery."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        await hub.connect(source, receiver.url)
        for _ in range(30):
            await hub.sent(source)
            hub.clock.advance(0.001)
        times = 0

        async def interrupted(call: Any, key: Any, *changes: Any, **more: Any) -> Any:
            nonlocal times
            if key.spec.item is Replay:
                times += 1
                if times <= 2:
                    raise RuntimeError("the power went out")
            return await call(key, *changes, **more)

        store: Any = hub.relay.store
        store.around["update"] = interrupted
        answer = await hub.call("POST", "/v1/events/replay", {"source_id": source})
        await hub.settle()
        for _ in range(4):
            await hub.later(61)
        done = await hub.get(f"/v1/replays/{answer.json['id']}")
        assert (done["status"], done["events"]) == ("done", 30)
        assert len(receiver.got) == 60
        assert (await hub.get("/v1/usage"))["events"] == 60  # what is repeated costs nothing


async def test_somebody_elses_event_cannot_be_replayed(hub: Hub) -> None:
    source = await hub.source()
    event_id = await hub.sent(source)
    other = await hub.server.api_key(email="bob@example.com")
    assert (await replay(hub, event_id, token=other)).status == 404
    body = {"source_id": source}
    assert (await hub.call("POST", "/v1/events/replay", body, token=other)).status == 404
