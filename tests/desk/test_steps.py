"""Stopped at every step and taken up again: the same state, the same audit, each action once.

The steps are the calls of the store and the vendor that one event's work makes. A run is stopped at
each in turn, before the call and after it, by an error and by a crash, and then goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import WHERE, desk_at
from tests.support.faults import Faults, system_on
from waystation.desk.receiving.sealing import Parcel, unseal
from waystation.desk.tables import ConversationState
from waystation.errors import OutcomeUnknown, StoreUnavailable
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock

CALLS = ("put", "update", "transact", "delete", "get", "request")
MOST_STEPS = 60


class Crash(BaseException):
    """The process ends: nothing is cleaned up."""


class Tripwire:
    """Fails at one call of the store or the way out, before or after it is done."""

    def __init__(self, kind: Callable[[], BaseException], after: bool) -> None:
        self.kind = kind
        self.after = after
        self.at = -1
        self.count = 0
        self.dead = False

    async def tripping(self, call: Any, *given: Any, **named: Any) -> Any:
        if self.dead:
            await asyncio.sleep(3_600)  # a dead process does nothing more
        n, self.count = self.count, self.count + 1
        if n != self.at:
            return await call(*given, **named)
        if self.after:
            await call(*given, **named)
        error = self.kind()
        self.dead = isinstance(error, Crash)
        raise error

    def around(self, real: Any) -> Faults:
        wired = Faults(real)
        wired.around = {name: self.tripping for name in CALLS if hasattr(real, name)}
        return wired


async def conversation(counter: Counter, wire: Tripwire, step: int, texts: list[str]) -> bool:
    """Some messages, the first of which is stopped at a step. Whether there was such a step."""
    stopped = False
    for n, text in enumerate(texts):
        await counter.send_only(text, named(step))
        if n == 0 and step >= 0:
            await counter.desk.switches.current()  # without them the desk is safe, not the same
            wire.count, wire.at = 0, step
            stopped = await stop(counter, wire)
            wire.at = -1
        await counter.later(100)
        await counter.later(700)
    return stopped


async def stop(counter: Counter, wire: Tripwire) -> bool:
    """Work on what is queued until the wire trips."""
    messages = await counter.desk.queue.receive()
    for message in messages:
        work = asyncio.ensure_future(counter.consumer.handle(message))
        while not work.done() and not wire.dead:
            await asyncio.sleep(0.001)
        if wire.dead:  # what a dead process held stays as it is
            work.cancel()
            await asyncio.wait([work])
            wire.dead = False
            return True
        if work.exception() is None:
            await counter.desk.queue.ack(message)
            return wire.count > wire.at
        await counter.desk.queue.release(message, 1.0)
        return True
    return False


def named(step: int) -> str:
    """Each run is a conversation of its own."""
    return f"run{step + 1}"


async def outcome(counter: Counter, step: int) -> dict[str, Any]:
    """What can be seen of a conversation, without the times."""
    state = await counter.state(named(step))
    for name in ("id", "updated_at", "last_processed_at", "version", "last_processed_message_id"):
        del state[name]
    for part in ("last_auto_reply", "pending_flow"):
        if state[part] is not None:
            state[part] = {k: v for k, v in state[part].items() if k in ("type", "attempts")}
    done = await counter.audit(named(step))
    audit = [(e["action_type"], e["result"], e["payload"]) for e in done]
    assert counter.vendor is not None
    ticket = counter.vendor.tickets[named(step)]
    return {
        "state": state,
        "audit": audit,
        "said": ticket.said,
        "assigned": list(dict.fromkeys(ticket.assigned)),
        "tags": list(dict.fromkeys(ticket.tags)),
    }


@pytest.mark.parametrize(
    "texts",
    [["please cancel my order", "Where is my order?"], [WHERE, "please cancel my order"]],
    ids=["routed", "answered"],
)
@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (Crash, False),
        (Crash, True),
        (lambda: StoreUnavailable("gone"), False),
        (lambda: OutcomeUnknown("lost"), True),
        (lambda: RuntimeError("a mistake"), True),
    ],
    ids=["crash-before", "crash-after", "unavailable", "unknown", "mistake"],
)
async def test_a_run_that_is_stopped_ends_like_one_that_is_not(
    clock: ManualClock,
    vendor: Vendor,
    kind: Callable[[], BaseException],
    after: bool,
    texts: list[str],
) -> None:
    wire = Tripwire(kind, after)
    systems = system_on("desk", store=wire.around, outbound=wire.around)
    async with desk_at(clock, vendor, systems=systems) as counter:
        await counter.automate()
        await conversation(counter, wire, -1, texts)
        wanted = await outcome(counter, -1)
        assert len(wanted["audit"]) == 5
        steps = 0
        for step in range(MOST_STEPS):
            stopped = await conversation(counter, wire, step, texts)
            found = await outcome(counter, step)
            assert told_of_doubts(found, wanted) == wanted, f"stopped at step {step}"
            if not stopped:
                break
            steps += 1
    assert 12 <= steps < MOST_STEPS


def told_of_doubts(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """A run that was stopped between deciding to speak and speaking has not spoken, and says that
    it does not know: in everything else it is like the others."""
    doubts = [n for n, (_, result, _) in enumerate(found["audit"]) if result.startswith("unknown")]
    for n in doubts:
        kind, _, payload = found["audit"][n]
        assert kind == "auto_reply"
        found["audit"][n] = (kind, "success", payload)
    if doubts:
        assert found["said"] == wanted["said"][1:]
        found["said"] = wanted["said"]
    return found


async def test_an_event_that_a_dead_worker_holds_is_taken_over_when_its_claim_runs_out(
    counter: Counter,
) -> None:
    await counter.send_only("please cancel my order", "c1")
    [message] = await counter.desk.queue.receive()
    worker = counter.desk.worker
    envelope = unseal(counter.hub.runtime.vault, message.decode(Parcel))
    held = await worker._claim(envelope, await counter.desk.switches.current())
    assert held is not None
    await counter.desk.queue.release(message)
    await counter.settle()
    assert await counter.done() == []
    await counter.later(65)
    assert await counter.done() == [("route", "success"), ("tag", "success")]


async def test_a_slow_worker_does_not_overwrite_its_successor(local: Counter) -> None:
    """One whose claim has run out while it decided finds the event done, and writes nothing."""
    await local.send_only("please cancel my order", "c1")
    [message] = await local.desk.queue.receive()
    planner: Any = local.desk.worker._planner
    reached, gate = asyncio.Event(), asyncio.Event()
    real = planner.plan

    async def slow(*given: Any) -> Any:
        plan = await real(*given)
        reached.set()
        await gate.wait()
        return plan

    planner.plan = slow
    late = asyncio.ensure_future(local.consumer.handle(message))
    await reached.wait()
    planner.plan = real
    local.clock.advance(70)
    await local.settle()
    before = await local.state()
    gate.set()
    await asyncio.wait([late])
    assert late.exception() is not None
    assert await local.state() == before
    assert len(await local.done()) == 2


async def delayed(local: Counter) -> Vendor:
    """A reply is planned, and has to wait because the vendor is away."""
    await local.automate()
    assert local.vendor is not None
    local.vendor.troubles["tag"] = [503] * 3
    await local.write(WHERE)
    assert local.vendor.tickets["c1"].said == []
    return local.vendor


async def test_a_plan_is_carried_out_as_it_was_made(local: Counter) -> None:
    vendor = await delayed(local)
    local.desk.judge.rules.decide = None  # type: ignore[method-assign,assignment]
    await local.later(300)
    assert len(vendor.tickets["c1"].said) == 1
    assert vendor.tickets["c1"].assigned == ["email"]


@pytest.mark.parametrize(
    "switches",
    [
        {"safe_mode": True},
        {"automation_enabled": False},
        {"channels": []},
        {"templates": {"order_status": False}},
    ],
)
async def test_a_switch_stops_a_reply_that_was_planned(
    local: Counter, switches: dict[str, Any]
) -> None:
    vendor = await delayed(local)
    await local.set(**switches)
    await local.later(300)
    assert vendor.tickets["c1"].said == []
    assert (await local.done())[-1][1].startswith("skipped: ")
    assert (await local.state())["last_auto_reply"] is None


async def test_what_happened_since_stops_a_reply_that_was_planned(local: Counter) -> None:
    """Another service has seen an agent answer and the ticket closed; that stays so, too."""
    vendor = await delayed(local)
    store = local.hub.runtime.store
    await store.update(
        ConversationState.key("c1"),
        set_to("closed", True),
        set_to("agent_replied_at", "2026-11-18T12:00:00Z"),
        when=exists(),
    )
    await local.later(300)
    assert vendor.tickets["c1"].said == []
    state = await local.state()
    assert (state["closed"], state["agent_replied_at"]) == (True, "2026-11-18T12:00:00Z")


async def test_the_interlock_stops_what_was_planned(local: Counter) -> None:
    vendor = await delayed(local)
    local.desk.worker._planner._outbound = False
    await local.later(300)
    assert vendor.tickets["c1"].said == []
    assert {result for _, result in (await local.done())[1:]} == {"dry_run"}


async def test_an_event_that_comes_late_undoes_nothing(local: Counter) -> None:
    """A dead letter of the morning is sent again in the evening."""
    await local.automate()
    assert local.vendor is not None
    local.vendor.always = 500
    await local.send_only("please cancel my order", "c1")
    for _ in range(25):
        await local.later(310)
    local.vendor.always = None
    await local.write(WHERE)
    before = await local.state()
    await local.desk.letters.redrive("me", 60, 10)
    await local.desk.letters.tick()
    await local.settle()
    after = await local.state()
    assert ("route", "success") in await local.done()
    for name in ("last_intent", "last_auto_reply", "last_routed_team"):
        assert after[name] == before[name]


async def test_an_escalation_counts_even_if_it_is_never_finished(local: Counter) -> None:
    await local.automate()
    assert local.vendor is not None
    local.vendor.always = 500
    await local.send_only("my lawyer will write", "c1")
    for _ in range(25):
        await local.later(310)
    local.vendor.always = None
    await local.write(WHERE)
    assert local.vendor.tickets["c1"].said == []


async def test_a_reply_counts_from_when_it_is_planned(local: Counter) -> None:
    """An event that replied and then died does not let the next one reply at once."""
    await local.automate()
    await local.write(WHERE)
    assert local.vendor is not None
    local.vendor.troubles["assign"] = [503] * 9
    local.clock.advance(700)
    await local.send_only(WHERE, "c1")
    await local.settle()
    state = await local.hub.runtime.store.get(ConversationState.key("c1"))
    assert state is not None
    assert len(state.auto_replies or []) == 2
