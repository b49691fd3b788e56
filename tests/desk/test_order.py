"""A thousand conversations and eight workers, with messages that come again and out of turn."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.desk.counter import Counter, desk_at, payload
from waystation.desk.tables import AuditAction, EventRecord
from waystation.queues import Consumer

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.clock import ManualClock
    from waystation.queues import Message

CONVERSATIONS = 1_000
MESSAGES = 3
WORKERS = 8


class Unreliable(Consumer):
    """Does the work and then, often, forgets to say so: the message comes again."""

    def __init__(self, counter: Counter, began: Any, rng: random.Random) -> None:
        super().__init__(counter.desk.queue, counter.desk.worker.handle, concurrency=4)
        self._began = began
        self._rng = rng

    async def process(self, message: Message) -> None:
        self._began(message)
        if self._rng.random() < 0.15:
            await self.queue.release(message)  # out of turn, if anybody lets it
            return
        await self.handle(message)
        if self._rng.random() < 0.15:
            await self.queue.release(message)
        else:
            await self.queue.ack(message)


async def test_each_conversation_stays_in_order(clock: ManualClock, tmp_path: Path) -> None:
    place = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/b"}
    rng = random.Random(4)
    async with desk_at(clock, **place) as one, desk_at(clock, **place) as two:
        await one.automate()
        given = [
            payload(f"please cancel my order, {m}", f"c{n}", message_id=f"m{m}")
            for m in range(MESSAGES)
            for n in rng.sample(range(CONVERSATIONS), CONVERSATIONS)
        ]
        for start in range(0, len(given), 50):
            some = given[start : start + 50]
            await asyncio.gather(*(one.send(each) for each in some))
        busy: dict[str, int] = defaultdict(int)
        seen: dict[str, list[int]] = defaultdict(list)

        def watched(counter: Counter) -> Any:
            real = counter.desk.worker._work

            async def work(envelope: Any, *rest: Any) -> None:
                busy[envelope.conversation_id] += 1
                assert busy[envelope.conversation_id] == 1, "two at once"
                seen[envelope.conversation_id].append(int(envelope.message_id[1:]))
                await real(envelope, *rest)
                busy[envelope.conversation_id] -= 1

            return work

        stopping = asyncio.Event()
        workers = []
        for counter in (one, two):
            counter.desk.worker._work = watched(counter)  # type: ignore[method-assign]
            for _ in range(WORKERS // 2):
                worker = Unreliable(counter, lambda _: None, rng)
                workers.append(asyncio.create_task(worker.run(stopping)))
        async with asyncio.timeout(120):
            while sum(map(len, seen.values())) < CONVERSATIONS * MESSAGES or await left(one):
                await asyncio.sleep(0.05)
                for task in workers:
                    if task.done():
                        task.result()
        stopping.set()
        await asyncio.gather(*workers)
        assert len(seen) == CONVERSATIONS
        assert all(order == list(range(MESSAGES)) for order in seen.values())
        await _recorded_once(one)


async def left(counter: Counter) -> bool:
    depth = await counter.desk.queue.depth()
    return bool(depth.ready or depth.in_flight or depth.delayed)


async def _recorded_once(counter: Counter) -> None:
    """Every event processed, two actions each, and one audit row for each action."""
    store = counter.hub.runtime.store
    for n in random.sample(range(CONVERSATIONS), 100):
        page = await store.query(AuditAction.query(f"c{n}"))
        keys = [action.idempotency_key for action in page.items]
        assert len(keys) == len(set(keys)) == 2 * MESSAGES
        for m in range(MESSAGES):
            record = await store.get(EventRecord.key(f"evt:rp:c{n}:m{m}"))
            assert record is not None
            assert record.status == "processed"
