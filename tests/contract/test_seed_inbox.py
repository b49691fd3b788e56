"""Every query pattern and operation of the inbox document, on every engine."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

import pytest

from waystation.errors import TransactionCancelled
from waystation.inbox.tables import (
    TOTAL,
    Audiences,
    Content,
    InboxConfig,
    PublicMessage,
    PublicStats,
    Receipt,
    Settings,
    Taxonomy,
    UserMessage,
    UserStats,
)
from waystation.store import Check, Put, Store, Update, absent, add, attr, exists, key_of, set_to

if TYPE_CHECKING:
    from waystation.clock import ManualClock


def message(store: Store, message_id: str, category: str = "news") -> UserMessage:
    return UserMessage(
        id=message_id,
        sender="sys",
        audiences=Audiences("users", "one"),
        received=1,
        delivered=1,
        expiredat=store.now() + 60,
        taxonomy=Taxonomy(category),
        message=Content("Hello", {"text": "body"}),
        tenant_key="acme",
        inbox_key="main",
        uid="u1",
    )


def public(store: Store, message_id: str) -> PublicMessage:
    return PublicMessage(
        id=message_id,
        sender="sys",
        audiences=Audiences("everyone"),
        received=1,
        delivered=1,
        expiredat=store.now() + 60,
        taxonomy=Taxonomy("news"),
        message=Content("Hello", "all"),
        tenant_key="acme",
        inbox_key="main",
    )


async def publish(store: Store, sent: UserMessage) -> None:
    counts = [TOTAL, sent.taxonomy.category] if sent.taxonomy else [TOTAL]
    await store.transact(
        Put(sent, when=absent()),
        *(
            Update(UserStats.key("acme", "u1", "main", category), add("published", 1))
            for category in counts
        ),
    )


async def read(store: Store, message_id: str) -> None:
    await store.transact(
        Update(
            UserMessage.key("acme", "u1", "main", message_id),
            set_to("readat", 5),
            when=exists() & attr("readat").absent(),
        ),
        Update(UserStats.key("acme", "u1", "main", TOTAL), add("read", 1)),
    )


async def read_public(store: Store, sent: PublicMessage) -> None:
    receipt = Receipt(
        tenant_key="acme",
        uid="u1",
        inbox_key="main",
        id=sent.id,
        taxonomy=sent.taxonomy,
        readat=5,
        expiredat=sent.expiredat or 0,
    )
    await store.transact(
        Check(key_of(sent), exists()),
        Put(receipt, when=absent()),
        Update(UserStats.key("acme", "u1", "main", TOTAL), add("read", 1)),
    )


async def test_user_messages_by_prefix(seeds: Store) -> None:
    await publish(seeds, message(seeds, "a1"))
    await publish(seeds, message(seeds, "a2"))
    found = await seeds.query(UserMessage.query("acme", "u1", "main"), reverse=True)
    assert [m.id for m in found.items] == ["a2", "a1"]


async def test_public_messages_by_prefix(seeds: Store) -> None:
    await seeds.put(public(seeds, "p1"))
    found = await seeds.query(PublicMessage.query("acme", "main"))
    assert list(found.items) == [public(seeds, "p1")]


async def test_receipts_do_not_mix_into_message_pages(seeds: Store) -> None:
    await publish(seeds, message(seeds, "a1"))
    await seeds.put(public(seeds, "p1"))
    await read_public(seeds, public(seeds, "p1"))
    found = await seeds.query(UserMessage.query("acme", "u1", "main"))
    assert [m.id for m in found.items] == ["a1"]


async def test_user_total_and_category_counts(seeds: Store) -> None:
    await publish(seeds, message(seeds, "a1"))
    total = await seeds.get(UserStats.key("acme", "u1", "main", TOTAL))
    news = await seeds.get(UserStats.key("acme", "u1", "main", "news"))
    assert total == UserStats(published=1, tenant_key="acme", inbox_key="main", uid="u1")
    assert news is not None
    assert (news.category, news.published) == ("news", 1)


async def test_a_stats_item_made_by_an_update_is_complete(seeds: Store) -> None:
    await publish(seeds, message(seeds, "a1"))
    stats = await seeds.get(UserStats.key("acme", "u1", "main", TOTAL))
    assert stats is not None
    found = await seeds.query(
        UserStats.query("acme", "u1", "main", TOTAL),
        where=(attr("kind") == "US") & (attr("tenant_key") == "acme") & (attr("uid") == "u1"),
    )
    assert list(found.items) == [stats]


async def test_public_counts(seeds: Store) -> None:
    await seeds.transact(
        Put(public(seeds, "p1"), when=absent()),
        Update(PublicStats.key("acme", "main", TOTAL), add("published", 1)),
        Update(PublicStats.key("acme", "main", "news"), add("published", 1)),
    )
    found = await seeds.get(PublicStats.key("acme", "main", TOTAL))
    assert found == PublicStats(published=1, tenant_key="acme", inbox_key="main")


async def test_tenant_settings(seeds: Store) -> None:
    settings = Settings(title="Acme", ttl="30d", tenant_key="acme", uid="admin")
    await seeds.put(settings)
    assert await seeds.get(Settings.key("acme")) == settings


async def test_inbox_config(seeds: Store) -> None:
    config = InboxConfig(
        title="Main",
        description="All of it",
        ttl={"default": "30d", "alert": "12h"},
        tenant_key="acme",
        inbox_key="main",
        uid="admin",
    )
    await seeds.put(config)
    assert await seeds.get(InboxConfig.key("acme", "main")) == config


async def test_reading_a_message_twice_counts_once(seeds: Store) -> None:
    await publish(seeds, message(seeds, "a1"))
    await read(seeds, "a1")
    with pytest.raises(TransactionCancelled):
        await read(seeds, "a1")
    stats = await seeds.get(UserStats.key("acme", "u1", "main", TOTAL))
    assert stats is not None
    assert stats.read == 1


async def test_many_at_once_reading_a_broadcast_count_once(seeds: Store) -> None:
    sent = public(seeds, "p1")
    await seeds.put(sent)
    outcomes = await asyncio.gather(
        *(read_public(seeds, sent) for _ in range(8)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    stats = await seeds.get(UserStats.key("acme", "u1", "main", TOTAL))
    assert stats is not None
    assert stats.read == 1


async def test_reading_what_was_never_published_counts_nothing(seeds: Store) -> None:
    with pytest.raises(TransactionCancelled):
        await read_public(seeds, public(seeds, "nothing"))
    assert await seeds.get(UserStats.key("acme", "u1", "main", TOTAL)) is None


async def test_an_expired_message_cannot_be_read(seeds: Store, clock: ManualClock) -> None:
    await publish(seeds, message(seeds, "a1"))
    clock.advance(60)
    with pytest.raises(TransactionCancelled):
        await read(seeds, "a1")


async def test_keys_are_the_documents(seeds: Store) -> None:
    keys = [
        Settings.key("acme"),
        InboxConfig.key("acme", "main"),
        UserMessage.key("acme", "u1", "main", "a1"),
        PublicMessage.key("acme", "main", "a1"),
        UserStats.key("acme", "u1", "main", "*"),
        UserStats.key("acme", "u1", "main", "news"),
        PublicStats.key("acme", "main", "*"),
    ]
    assert [(key.pk, key.sk) for key in keys] == [
        ("t#acme", "st#tenant_settings"),
        ("t#acme", "si#main"),
        ("t#acmeU#u1#main", "m#a1"),
        ("t#acmeG#$public#main", "m#a1"),
        ("t#acmeU#u1#main", "c#*"),
        ("t#acmeU#u1#main", "c#news"),
        ("t#acmeG#$public#main", "c#*"),
    ]


async def test_both_kinds_of_messages_merge_by_id(seeds: Store) -> None:
    for sent in ("a1", "a3"):
        await publish(seeds, message(seeds, sent))
    for sent in ("a2", "a4"):
        await seeds.put(public(seeds, sent))
    own = await seeds.query(UserMessage.query("acme", "u1", "main"), reverse=True)
    shared = await seeds.query(PublicMessage.query("acme", "main"), reverse=True)
    merged = heapq.merge([m.id for m in own.items], [m.id for m in shared.items], reverse=True)
    assert list(merged) == ["a4", "a3", "a2", "a1"]
