"""The access patterns of the desk's, the gate's and the pages' documents, on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from waystation.desk.tables import (
    AuditAction,
    AutoReply,
    ConversationState,
    EventRecord,
    PendingFlow,
)
from waystation.errors import ConditionFailed, TransactionCancelled
from waystation.gate.tables import CACHE_SECONDS, CacheEntry
from waystation.pages.keeping.places import partition
from waystation.pages.tables import PageLock, PageMeta
from waystation.store import (
    Put,
    Store,
    Update,
    absent,
    add,
    attr,
    exists,
    key_of,
    remove,
    set_to,
)

if TYPE_CHECKING:
    from waystation.clock import ManualClock

NOW = "2026-01-03T00:00:00Z"


def record(store: Store) -> EventRecord:
    return EventRecord(
        event_id="evt:rp:conv-1:msg-1",
        created_at=NOW,
        last_processed_at=NOW,
        received_at=NOW,
        expires_at=store.now() + 30 * 86_400,
        mode="route_only",
        conversation_id="conv-1",
        safe_mode=True,
        automation_enabled=False,
        payload_sha256="0" * 64,
        payload_bytes=2,
    )


async def test_desk_first_sight_of_an_event_wins(seeds: Store) -> None:
    await seeds.put(record(seeds), when=absent())
    with pytest.raises(ConditionFailed) as failed:
        await seeds.put(record(seeds), when=absent())
    assert failed.value.item == record(seeds)


async def test_desk_an_event_is_forgotten_after_thirty_days(
    seeds: Store, clock: ManualClock
) -> None:
    await seeds.put(record(seeds), when=absent())
    clock.advance(30 * 86_400)
    await seeds.put(record(seeds), when=absent())


async def test_desk_conversation_state(seeds: Store) -> None:
    state = ConversationState(
        conversation_id="conv-1",
        updated_at=NOW,
        expires_at=seeds.now() + 90 * 86_400,
        last_routed_team="returns",
        last_routing_confidence=0.85,
        risk_flags={"chargeback", "fraud_suspected"},
        pending_flow=PendingFlow("need_order_number", NOW, 1),
        last_auto_reply=AutoReply("order_status", NOW, "msg-1"),
    )
    await seeds.put(state)
    assert await seeds.get(ConversationState.key("conv-1")) == state


async def test_desk_two_workers_on_one_conversation(seeds: Store) -> None:
    expires = seeds.now() + 60
    await seeds.put(ConversationState(conversation_id="c", updated_at=NOW, expires_at=expires))
    one = await seeds.get(ConversationState.key("c"))
    two = await seeds.get(ConversationState.key("c"))
    assert one is not None
    assert two is not None
    await seeds.put(one)
    with pytest.raises(ConditionFailed):
        await seeds.put(two)


async def test_desk_audit_of_a_conversation_in_order(seeds: Store) -> None:
    for at, action in (("2026-01-03T00:00:02Z", "tag"), ("2026-01-03T00:00:01Z", "route")):
        await seeds.put(
            AuditAction(
                conversation_id="conv-1",
                timestamp=at,
                action_id=f"act-{action}",
                action_type=action,
                action_payload_redacted="{}",
                idempotency_key=f"act:{action}:conv-1",
                result="success",
                expires_at=seeds.now() + 60 * 86_400,
            )
        )
    found = await seeds.query(AuditAction.query("conv-1"))
    assert [(a.timestamp, a.action_type) for a in found.items] == [
        ("2026-01-03T00:00:01Z", "route"),
        ("2026-01-03T00:00:02Z", "tag"),
    ]


async def test_desk_event_and_its_trace_are_one_transaction(seeds: Store) -> None:
    state = ConversationState(conversation_id="c", updated_at=NOW, expires_at=seeds.now() + 60)
    await seeds.transact(Put(record(seeds), when=absent()), Put(state))
    with pytest.raises(TransactionCancelled):
        await seeds.transact(Put(record(seeds), when=absent()), Put(state))


async def test_gate_cache_write_and_read(seeds: Store) -> None:
    check = CacheEntry(
        team_id="T01234567",
        user_id="U01234567",
        channel_id="C01234567",
        ttl=seeds.now() + CACHE_SECONDS,
        verified_at=seeds.now(),
    )
    await seeds.put(check)
    key = CacheEntry.key("T01234567", "U01234567", "C01234567")
    assert key.pk == "T01234567#U01234567#C01234567"
    assert await seeds.get(key) == check


async def test_gate_an_entry_counts_only_while_its_ttl_is_ahead(
    seeds: Store, clock: ManualClock
) -> None:
    ttl = seeds.now() + CACHE_SECONDS
    check = CacheEntry(team_id="T1", user_id="U1", channel_id="C1", ttl=ttl)
    await seeds.put(check)
    clock.advance(CACHE_SECONDS - 1)
    assert await seeds.get(key_of(check)) is not None
    clock.advance(1)
    assert await seeds.get(key_of(check)) is None


PAGE = partition("acme", "f" * 64)


async def acquire(store: Store, token: str) -> PageLock | None:
    now = store.now()
    free = attr("lease_expires_at").absent() | (attr("lease_expires_at") <= now)
    return await store.update(
        PageLock.key(PAGE),
        set_to("lease_token", token),
        set_to("lease_expires_at", now + 30),
        add("fence", 1),
        when=free | (attr("lease_token") == token),
        returning="new",
    )


async def test_pages_a_lease_has_one_holder(seeds: Store) -> None:
    held = await acquire(seeds, "mine")
    assert held is not None
    assert held.fence == 1
    with pytest.raises(ConditionFailed):
        await acquire(seeds, "yours")


async def test_pages_a_lapsed_lease_can_be_taken(seeds: Store, clock: ManualClock) -> None:
    await acquire(seeds, "mine")
    clock.advance(30)
    held = await acquire(seeds, "yours")
    assert held is not None
    assert (held.lease_token, held.fence) == ("yours", 2)


async def test_pages_refresh_needs_the_token(seeds: Store) -> None:
    await acquire(seeds, "mine")
    key = PageLock.key(PAGE)
    later = set_to("lease_expires_at", seeds.now() + 60)
    await seeds.update(key, later, when=attr("lease_token") == "mine")
    with pytest.raises(ConditionFailed):
        await seeds.update(key, later, when=attr("lease_token") == "yours")


async def test_pages_publish_and_release_are_one_transaction(seeds: Store) -> None:
    held = await acquire(seeds, "mine")
    assert held is not None
    meta = PageMeta(
        pk=PAGE,
        s3_key="pages/1",
        generated_at=seeds.now(),
        revalidate_seconds=60,
        etag='"1"',
    )
    mine = (attr("lease_token") == "mine") & (attr("fence") == held.fence)
    await seeds.transact(
        Put(meta),
        Update(key_of(held), remove("lease_token"), remove("lease_expires_at"), when=mine),
    )
    assert await seeds.get(PageMeta.key(PAGE)) == meta
    lock = await seeds.get(key_of(held))
    assert lock is not None
    assert (lock.lease_token, lock.fence) == (None, 1)


async def test_pages_a_loser_cannot_publish(seeds: Store, clock: ManualClock) -> None:
    await acquire(seeds, "slow")
    clock.advance(30)
    await acquire(seeds, "fast")
    meta = PageMeta(pk=PAGE, s3_key="x", generated_at=1, revalidate_seconds=1)
    with pytest.raises(TransactionCancelled):
        await seeds.transact(
            Put(meta),
            Update(
                PageLock.key(PAGE),
                remove("lease_token"),
                when=exists() & (attr("lease_token") == "slow"),
            ),
        )
    assert await seeds.get(PageMeta.key(PAGE)) is None


async def test_pages_keys_are_the_documents(seeds: Store) -> None:
    key = PageMeta.key(partition("acme", "abc"))
    assert (key.pk, key.sk) == ("TENANT#acme#CACHE#abc", "META")
    assert PageLock.key(partition("acme", "abc")).sk == "LOCK"
    assert PageMeta.key(partition(None, "abc")).pk == "CACHE#abc"
