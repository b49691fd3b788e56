"""Purges: a number for each, kept with what it is about, and compared with the number of the last
one before a page was begun. What a purge costs does not depend on how many pages it is about.

No clocks are compared, but for pages of other services, which know nothing of these numbers.
"""

from __future__ import annotations

import asyncio
import random
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.errors import ConditionFailed, Overloaded, TransactionCancelled, TransactionConflict
from waystation.pages.tables import Purge, Purges
from waystation.patterns import Newest
from waystation.store import Put, Update, set_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.pages.keeping.entries import Entry
    from waystation.pages.tables import Marks
    from waystation.store import Key, Store

Kind = Literal["all", "prefix", "path", "url", "tag"]

PURGE_SECONDS = 400 * 86_400
"""Longer than any page lives."""

_STATE_SECONDS = 1.0
_NEAR_SECONDS = 0.01
_MOST_STATES = 10_000
_MOST_PREFIXES = 100
_SKEW_SECONDS = 1
_TRIES = 30
_NEVER: Marks = (0, 0.0, 0, 0.0)


class Verdict(msgspec.Struct, frozen=True):
    """Whether a page was purged. One that was purged softly may still be used as a stale one."""

    hard: bool = False
    soft_at: float | None = None

    @property
    def clear(self) -> bool:
        return not self.hard and self.soft_at is None


CLEAR = Verdict()


class PurgeBook:
    """What was purged, of every cache in a store.

    A purge that was acknowledged counts in every process: none relies on what it read for longer
    than a second, or a hundredth of one where reads are near, and whoever purges waits for so long.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: Newest[str, tuple[float, Purges]] = Newest(_MOST_STATES)
        self.state_seconds = _NEAR_SECONDS if store.near else _STATE_SECONDS

    async def state(self, scope: str, *, now: bool = False) -> Purges:
        """How many purges a cache has had."""
        if self.state_seconds and not now:
            at, known = self._states.get(scope) or (0.0, None)
            if known is not None and asyncio.get_running_loop().time() - at < self.state_seconds:
                return known
        return await self._read(scope)

    async def _read(self, scope: str) -> Purges:
        begun = asyncio.get_running_loop().time()
        state = await self._store.get(_key(scope)) or Purges(scope=scope)
        if self.state_seconds:
            self._states[scope] = (begun, state)
        return state

    async def verdict(self, entry: Entry, state: Purges) -> Verdict:
        """What the purges since a page was begun mean for it."""
        if state.seq == 0 or (entry.seq is not None and entry.seq >= state.seq):
            return CLEAR
        found = [state.everything]
        path = entry.place.path
        found += [marks for prefix, marks in state.prefixes.items() if path.startswith(prefix)]
        keys = [
            Purge.key(entry.place.scope, kind, _digest(target))
            for kind, target in {
                ("path", path),
                ("url", entry.place.url),
                *(("tag", tag) for tag in entry.tags),
            }
        ]
        rows = await self._store.batch_get(keys)
        found += [row.marks for row in rows if row is not None]
        return _judged(entry, found)

    async def purge(
        self,
        scope: str,
        kind: Kind,
        target: str,
        *,
        hard: bool,
        settle: bool = True,
        last: bool = False,
    ) -> int:
        """Let pages not count any more: to be generated anew before they are used again, if it is
        to be hard, and else while the old ones are. The number of the purge.

        It is over when the purge counts everywhere; with `settle=False`, and where reads are not
        near, when it counts here. After the `last` one there is no cache any more to count the
        purges of.
        """
        for _ in range(_TRIES):
            state = await self._read(scope)
            now = self._store.clock()
            ttl = int(now) + PURGE_SECONDS if last else None
            state = msgspec.structs.replace(state, seq=state.seq + 1, ttl=ttl)
            actions: list[Update[Purge]] = []
            if kind == "all":
                state.everything = _marked(state.everything, state.seq, now, hard=hard)
            elif kind == "prefix":
                state.prefixes = _with_prefix(state, target, now, hard=hard)
            else:
                actions.append(self._row(scope, kind, target, state.seq, now, hard=hard))
            try:
                await self._store.transact(Put(state), *actions)
            except (ConditionFailed, TransactionCancelled, TransactionConflict):
                await asyncio.sleep(random.random() / 50)  # noqa: S311 - others purge as well
                continue
            self._states.pop(scope, None)
            if settle or self._store.near:
                await asyncio.sleep(self.state_seconds)
            return state.seq
        raise Overloaded("too many purge this cache at once", retry_after=1.0)

    def _row(
        self, scope: str, kind: Kind, target: str, seq: int, now: float, *, hard: bool
    ) -> Update[Purge]:
        name = "hard" if hard else "soft"
        return Update(
            Purge.key(scope, kind, _digest(target)),
            set_to("target", target),
            set_to(f"{name}_seq", seq),
            set_to(f"{name}_at", now),
            set_to("ttl", int(now) + PURGE_SECONDS),
        )


@lru_cache(maxsize=1024)
def _key(scope: str) -> Key[Purges]:
    return Purges.key(scope)


def _judged(entry: Entry, found: Iterable[Marks]) -> Verdict:
    soft: list[float] = []
    for soft_seq, soft_at, hard_seq, hard_at in found:
        if entry.seq is None:
            newest = entry.generated_at - _SKEW_SECONDS
            after_hard, after_soft = hard_at >= newest, soft_at >= newest
        else:
            after_hard, after_soft = hard_seq > entry.seq, soft_seq > entry.seq
        if after_hard and hard_seq:
            return Verdict(hard=True)
        if after_soft and soft_seq:
            soft.append(soft_at)
    return Verdict(soft_at=min(soft)) if soft else CLEAR


def _marked(marks: Marks, seq: int, now: float, *, hard: bool) -> Marks:
    return (marks[0], marks[1], seq, now) if hard else (seq, now, marks[2], marks[3])


def _with_prefix(state: Purges, prefix: str, now: float, *, hard: bool) -> dict[str, Marks]:
    """The prefixes with one more. Of too many the oldest two become what they have in common:
    more is purged then than was asked for, never less."""
    prefixes = dict(state.prefixes)
    prefixes[prefix] = _marked(prefixes.pop(prefix, _NEVER), state.seq, now, hard=hard)
    while len(prefixes) > _MOST_PREFIXES:
        one, other = sorted(prefixes, key=lambda each: max(prefixes[each][::2]))[:2]
        shared = _shared(one, other)
        merged = _later(prefixes.pop(one), prefixes.pop(other))
        prefixes[shared] = _later(prefixes.pop(shared, _NEVER), merged)
    return prefixes


def _later(one: Marks, other: Marks) -> Marks:
    soft = max(one[:2], other[:2])
    hard = max(one[2:], other[2:])
    return (*soft, *hard)


def _shared(one: str, other: str) -> str:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return one[:length] or "/"


def _digest(target: str) -> str:
    return sha256(target.encode("utf-8", "surrogateescape")).hexdigest()[:40]
