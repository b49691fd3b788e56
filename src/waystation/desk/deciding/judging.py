"""Deciding safely: a decider of the user's own is bounded, checked, and backed by the rules."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waystation.desk.deciding.decisions import checked
from waystation.desk.deciding.phrases import words
from waystation.errors import SettingsError
from waystation.patterns import redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.desk.deciding.decisions import Decider, Decision, Message
    from waystation.desk.deciding.rules import Rules

log = logging.getLogger(__name__)

T = TypeVar("T")
_QUOTED = 3
"""So many words of the customer's in a row are a quotation."""


class Judge:
    """Asks the decider, if there is one. Where that fails, the rules decide, and what the rules
    take for an escalation is one whatever the decider says."""

    def __init__(
        self,
        rules: Rules,
        decider: Decider | None = None,
        seconds: float = 5.0,
        failed: Callable[[], None] | None = None,
    ) -> None:
        self.rules = rules
        self._decider = decider
        self._seconds = seconds
        self._failed = failed

    async def __call__(self, message: Message) -> Decision:
        by_rules = self.rules.decide(message)
        if self._decider is None:
            return by_rules
        try:
            given = await bounded(self._decider(message), self._seconds)
            decided = checked(given, self.rules.teams)
        except Exception as error:  # noqa: BLE001 - it is the user's own code
            return self._instead(by_rules, type(error).__name__)
        decided = _without_quotes(decided, message)
        if not by_rules.escalated:
            return decided
        return msgspec.structs.replace(
            decided,
            escalated=True,
            reply=None,
            reply_text=None,
            risk_flags=sorted({*decided.risk_flags, *by_rules.risk_flags})[:20],
            reasons=[*decided.reasons, *by_rules.reasons][:20],
        )

    def _instead(self, by_rules: Decision, error: str) -> Decision:
        """Never the error's text: it may have the customer's in it."""
        log.warning("the decider failed with %s: the rules decide", error)
        if self._failed is not None:
            self._failed()
        reason = f"the decider failed with {error}, so the rules decided"
        return msgspec.structs.replace(by_rules, reasons=[reason, *by_rules.reasons][:20])


class Cancelled(Exception):
    """What the user's own code awaited was cancelled."""


async def bounded(work: Awaitable[T], seconds: float) -> T:
    """What the user's own code gives, in time; TimeoutError also when it will not stop."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        task.add_done_callback(_ignored)
        raise TimeoutError
    if task.cancelled():
        raise Cancelled
    return task.result()


def _ignored(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _without_quotes(decision: Decision, message: Message) -> Decision:
    """A decision whose reasons do not repeat what the customer wrote: that is nowhere kept. What
    else could be personal in them is masked."""
    said = f" {' '.join(words(message.text))} "
    kept = []
    for reason in decision.reasons:
        there = words(reason)
        runs = (there[n : n + _QUOTED] for n in range(max(1, len(there) - _QUOTED + 1)))
        quoted = any(f" {' '.join(run)} " in said for run in runs if len(run) == _QUOTED)
        kept.append("a reason that repeats the message" if quoted else redact(reason))
    return msgspec.structs.replace(decision, reasons=kept)


def imported(setting: str, path: str) -> Any:
    """The async callable that a setting names as `module:function`."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{setting}: {path} cannot be imported: {error}") from error
    call = found if inspect.isroutine(found) else getattr(found, "__call__", None)  # noqa: B004
    if not inspect.iscoroutinefunction(call):
        raise SettingsError(f"{setting}: {path} must be an async function, or an object like one")
    return found
