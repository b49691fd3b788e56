"""Every access pattern of Ferryhook's document, on every engine."""

from __future__ import annotations

from waystation.accounts.tables import ApiKey, User
from waystation.relay.tables import Attempt, Connection, Event, Source
from waystation.store import Store, add, exists, set_to

NOW = "2026-01-01T00:00:00Z"
MS = 1_767_225_600_000


def user(user_id: str = "usr_1", email: str = "ann@example.com") -> User:
    return User(user_id=user_id, email=email, name="Ann", created_at=NOW, updated_at=NOW)


def source(source_id: str, user_id: str = "usr_1") -> Source:
    return Source(
        source_id=source_id, user_id=user_id, name="Stripe", provider="stripe", created_at=NOW
    )


def connection(connection_id: str, source_id: str = "src_1") -> Connection:
    return Connection(
        connection_id=connection_id,
        source_id=source_id,
        user_id="usr_1",
        name="to us",
        destination_url="https://example.com/hook",
        signing_secret="whsec_x",
        created_at=NOW,
        updated_at=NOW,
    )


def api_key(key_id: str, key_hash: str) -> ApiKey:
    return ApiKey(
        key_id=key_id,
        user_id="usr_1",
        name="Production",
        key_hash=key_hash,
        key_prefix="ws_live_",
        permissions="write",
        created_at=NOW,
    )


def event(store: Store, event_id: str, received_at: int) -> Event:
    return Event(
        event_id=event_id,
        source_id="src_1",
        user_id="usr_1",
        headers="{}",
        body="{}",
        source_ip="127.0.0.1",
        method="POST",
        received_at=received_at,
        expires_at=store.now() + 86_400,
    )


def attempt(number: int) -> Attempt:
    return Attempt(
        event_id="evt_1",
        connection_id="conn_1",
        sequence=number,
        attempt_number=number,
        destination_url="https://example.com/hook",
        status_code=200,
        latency_ms=12,
        attempted_at=MS,
    )


async def test_get_user_by_id(seeds: Store) -> None:
    await seeds.put(user())
    assert await seeds.get(User.key("usr_1")) == user()


async def test_get_user_by_email(seeds: Store) -> None:
    await seeds.put(user())
    await seeds.put(user("usr_2", "bob@example.com"))
    found = await seeds.query(User.query("bob@example.com", index="GSI1"))
    assert [u.user_id for u in found.items] == ["usr_2"]


async def test_list_sources_for_user(seeds: Store) -> None:
    await seeds.batch_write(
        puts=[
            user(),
            source("src_1"),
            source("src_2"),
            api_key("key_1", "h"),
            source("src_3", "u2"),
        ]
    )
    found = await seeds.query(Source.query("usr_1"))
    assert [s.source_id for s in found.items] == ["src_1", "src_2"]


async def test_get_source_by_id_for_ingestion(seeds: Store) -> None:
    await seeds.put(source("src_1"))
    found = await seeds.query(Source.query("src_1", index="GSI3"))
    assert list(found.items) == [source("src_1")]


async def test_list_connections_for_source(seeds: Store) -> None:
    await seeds.batch_write(
        puts=[connection("conn_1"), connection("conn_2"), connection("conn_3", "src_2")]
    )
    found = await seeds.query(Connection.query("src_1"))
    assert [c.connection_id for c in found.items] == ["conn_1", "conn_2"]


async def test_authenticate_api_key(seeds: Store) -> None:
    await seeds.put(api_key("key_1", "abc"))
    found = await seeds.query(ApiKey.query("abc", index="GSI2"))
    assert [k.user_id for k in found.items] == ["usr_1"]


async def test_list_events_for_source_newest_first(seeds: Store) -> None:
    await seeds.batch_write(puts=[event(seeds, f"evt_{n}", MS + n) for n in range(5)])
    found = await seeds.query(Event.query("src_1"), reverse=True, limit=3)
    assert [e.event_id for e in found.items] == ["evt_4", "evt_3", "evt_2"]


async def test_get_event_by_id(seeds: Store) -> None:
    await seeds.put(event(seeds, "evt_1", MS))
    found = await seeds.query(Event.query("evt_1", index="GSI1"))
    assert [e.received_at for e in found.items] == [MS]


async def test_list_attempts_for_event(seeds: Store) -> None:
    await seeds.batch_write(puts=[attempt(1), attempt(2)])
    found = await seeds.query(Attempt.query("evt_1"))
    assert [a.attempt_number for a in found.items] == [1, 2]


async def test_list_users_api_keys(seeds: Store) -> None:
    await seeds.batch_write(puts=[user(), source("src_1"), api_key("key_1", "a")])
    found = await seeds.query(ApiKey.query("usr_1"))
    assert [k.key_id for k in found.items] == ["key_1"]


async def test_increment_usage(seeds: Store) -> None:
    await seeds.put(user())
    found = await seeds.update(
        User.key("usr_1"), add("usage_this_month", 3), when=exists(), returning="new"
    )
    assert found is not None
    assert found.usage_this_month == 3


async def test_update_event_status(seeds: Store) -> None:
    await seeds.put(event(seeds, "evt_1", MS))
    key = Event.key("src_1", MS, "evt_1")
    await seeds.update(
        key, set_to("status", "delivered"), set_to("delivered_at", MS), when=exists()
    )
    found = await seeds.get(key)
    assert found is not None
    assert (found.status, found.delivered_at) == ("delivered", MS)


async def test_key_and_index_attributes_are_the_documents(seeds: Store) -> None:
    stored = Source.spec.encode(Source.key("usr_1", "src_1"), source("src_1"))
    keys = {name: value for name, value in stored.items() if name.isupper()}
    assert keys == {
        "PK": "USER#usr_1",
        "SK": "SRC#src_1",
        "GSI3PK": "SRCID#src_1",
        "GSI3SK": "SOURCE",
    }
    assert stored["sourceId"] == "src_1"
    stored = Event.spec.encode(Event.key("src_1", MS, "evt_1"), event(seeds, "evt_1", MS))
    assert stored["SK"] == f"EVT#{MS}#evt_1"
    assert stored["GSI1PK"] == "EVTID#evt_1"
