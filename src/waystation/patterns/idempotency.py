"""Doing work once, however often it is asked for.

Claim, work, complete. A claim is a lease on the key's record: whoever works holds it and keeps it
alive, and completes only while it is still theirs. A late worker finds its successor's result at
the end, and never overwrites it. Nothing is kept between calls but the record, so calls may nest
and run beside each other.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import random
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_type_hints

from waystation.errors import (
    ConditionFailed,
    DeclarationError,
    InProgress,
    KeyMissing,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultUnavailable,
    StoreUnavailable,
    TransactionConflict,
)
from waystation.ids import nanoid, secret_hash
from waystation.patterns.fingerprints import fingerprint
from waystation.patterns.leases import Leases
from waystation.patterns.records import Errors, Failure, Record, idempotency
from waystation.patterns.results import Misfit, pack, unpack
from waystation.store import attr, exists, set_if_absent, set_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.patterns.leases import Lease
    from waystation.store import Action, Edit, Key, Store

T = TypeVar("T")
P = ParamSpec("P")

MAX_RESULT = 256 * 1024
MAX_KEY = 1024
LONGEST = 3600
"""Seconds that one attempt may hold on to a key, if it keeps its lease alive."""
_MAX_STEPS = 50
_POLL = 0.05
_LONGEST_POLL = 1.0
_LOST = "the work was done; its result is lost"

__all__ = ["Idempotency", "Outcome", "Record", "Run", "idempotency"]

Outcome = Literal["acquired", "replayed", "conflicted", "lapsed", "completed", "failed"]


class Run:
    """One attempt at the work under a key."""

    def __init__(self, owner: Idempotency, lease: Lease, result: object) -> None:
        self._owner = owner
        self._lease = lease
        self._result = result
        record = lease.row
        assert isinstance(record, Record)
        self._steps = record.steps
        self.attempt = lease.fence
        self.lost = lease.lost
        self.committed = False

    async def step(
        self, name: str, work: Callable[[], Awaitable[T]], *, result: type[T] | None = None
    ) -> T:
        """Do a part of the work once: a later attempt finds its result instead of doing it."""
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not a step's name: letters, digits and _")
        if name in self._steps:
            return unpack(self._steps[name], result)
        if len(self._steps) >= _MAX_STEPS or self._size() > self._owner.max_result // 2:
            raise ValueError(
                f"too many steps: at most {_MAX_STEPS}, with results of half the allowed size"
            )
        if not self._lease.held:
            raise LeaseLost(f"{self._lease.key}: another attempt may have taken over")
        value = await work()
        packed = pack(value, result)
        if self._size() + len(packed) > self._owner.max_result:
            raise ValueError(f"the results of steps have at most {self._owner.max_result} bytes")
        await self._lease.refresh(set_to(f"steps.{name}", packed))
        self._steps[name] = packed
        return value

    def _size(self) -> int:
        return sum(map(len, self._steps.values()))

    async def commit(self, *actions: Action, result: object = None) -> None:
        """Carry out the caller's writes and complete the work with a result, all or nothing."""
        packed = self._owner.packed(result, self._result)
        if isinstance(packed, Misfit):
            raise packed
        closing = self._lease.closing(*self._owner.completion(packed))
        await self._lease.publish(*actions, closing=closing)
        self.committed = True


class Idempotency:
    """Remembers what was done under which key, for `ttl` seconds."""

    def __init__(
        self,
        store: Store,
        *,
        ttl: int = 86_400,
        lease: int = 60,
        max_result: int = MAX_RESULT,
        hook: Callable[[Outcome, str, str], None] | None = None,
        leases: Leases | None = None,
    ) -> None:
        """`hook` is told the outcome, the scope and the key of every call."""
        self._store = store
        self._ttl = ttl
        self.max_result = max_result
        self._leases = leases or Leases(store, seconds=lease, longest=LONGEST, skew=0)
        self._hook = hook or _ignore

    async def run(
        self,
        scope: str,
        key: str | None,
        work: Callable[[Run], Awaitable[T]],
        *,
        payload: object = None,
        result: type[T] | None = None,
        terminal: Errors = (),
        wait: float = 0.0,
    ) -> T:
        """Do the work, or give back what it gave before.

        The same key with another payload is refused. `result` is the type to rebuild the result
        as; one that does not fit it is lost, which the first call says like all others. Errors of
        the `terminal` types are remembered and raised again, as RecordedFailure where
        they cannot be rebuilt; after any other, the next call tries again. While another call
        works, this one waits up to `wait` seconds, then raises InProgress.
        """
        if not key:
            raise KeyMissing("there is no idempotency key")
        if len(key) > MAX_KEY:
            raise KeyMissing(f"an idempotency key has at most {MAX_KEY} characters")
        try:
            claimed = await self._claim(scope, key, fingerprint(payload), wait)
            if isinstance(claimed, Record):
                self._hook("replayed", scope, key)
                return self._replay(claimed, result, terminal)
        except (InProgress, KeyReused):
            self._hook("conflicted", scope, key)
            raise
        self._hook("acquired", scope, key)
        return await self._attempt(claimed, work, scope, key, result, terminal)

    async def _attempt(
        self,
        lease: Lease,
        work: Callable[[Run], Awaitable[T]],
        scope: str,
        key: str,
        result: type[T] | None,
        terminal: Errors,
    ) -> T:
        run = Run(self, lease, result)
        worker = asyncio.current_task()
        assert worker is not None
        async with lease.kept(worker):
            try:
                value = await work(run)
            except terminal as error:
                await self._finish(lease, *self._failure(error))
                self._hook("failed", scope, key)
                raise
            except asyncio.CancelledError as error:
                if lease.lost.is_set() and worker.uncancel() == 0:
                    self._hook("lapsed", scope, key)
                    raise LeaseLost(f"{scope}: another attempt has taken over") from error
                await self._abandon(lease, scope, key)
                raise
            except BaseException:
                await self._abandon(lease, scope, key)
                raise
            packed = b"" if run.committed else self.packed(value, result)
            late = None if run.committed else await self._finish(lease, *self.completion(packed))
        if late is not None:
            self._hook("lapsed", scope, key)
            return self._replay(late, result, terminal)
        self._hook("completed", scope, key)
        if isinstance(packed, Misfit):
            raise ResultUnavailable(f"{_LOST}: {packed}") from packed
        return value

    async def _abandon(self, lease: Lease, scope: str, key: str) -> None:
        """Whatever went wrong, even a cancellation: the next call may try at once."""
        await asyncio.shield(lease.release())
        self._hook("failed", scope, key)

    def once(
        self,
        scope: str,
        *,
        key: Callable[P, str | None],
        payload: Callable[P, object] | None = None,
        terminal: Errors = (),
        wait: float = 0.0,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """A decorator: the function runs once per key.

        `key` and `payload` are called with the function's own arguments; all of them are the
        payload unless told otherwise. The result is rebuilt as the type that is annotated.
        """

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            if not _is_async(function):
                raise DeclarationError(f"{_name_of(function)} must be async to be done once")
            result = get_type_hints(_hinted(function)).get("return", Any)

            @functools.wraps(function)
            async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
                given: object = _arguments(function, args, kwargs)
                if payload is not None:
                    given = payload(*args, **kwargs)
                return await self.run(
                    scope,
                    key(*args, **kwargs),
                    lambda _: function(*args, **kwargs),
                    payload=given,
                    result=result,
                    terminal=terminal,
                    wait=wait,
                )

            return wrapped

        return decorate

    async def inspect(self, scope: str, key: str) -> Record | None:
        """The record of a key."""
        return await self._store.get(_key(scope, key))

    async def evict(self, scope: str, key: str) -> bool:
        """Forget a key, so that its work can be done again; not while it is being done."""
        try:
            await self._store.delete(_key(scope, key), when=exists() & self._leases.free(""))
        except ConditionFailed:
            return False
        return True

    async def _claim(self, scope: str, key: str, print_: bytes, wait: float) -> Lease | Record:
        """The lease on an open record, or a finished one."""
        deadline = self._leases.monotonic() + wait
        pause = _POLL
        while True:
            try:
                return await self._take(scope, secret_hash(key), print_)
            except TransactionConflict:
                record = None
            except ConditionFailed as failed:
                record = failed.item
            if record is not None:
                if record.fingerprint != print_:
                    raise KeyReused("the idempotency key was used with another payload")
                if record.status != "open":
                    return record  # type: ignore[no-any-return]
            left = deadline - self._leases.monotonic()
            if left <= 0:
                raise InProgress("the same work is being done", retry_after=self._patience(record))
            await self._leases.sleep(min(left, pause * (0.5 + random.random())))  # noqa: S311
            pause = min(_LONGEST_POLL, pause * 2)

    def _patience(self, record: Record | None) -> float:
        """Seconds after which it makes sense to ask again: as many as the work has taken so far.
        Should its worker have died, it can be done again when the lease is over."""
        if record is None:
            return 1.0
        now = self._store.clock()
        left = (record.lease_expires_at or 0) - now
        return max(1.0, min(left, now - (record.created_at or now)))

    async def _take(self, scope: str, key_hash: str, print_: bytes) -> Lease:
        """The lease; ConditionFailed with the record that stands in the way."""
        now = self._store.now()
        # Whoever works may hold on for that long; completing sets the end that was asked for.
        expires = now + self._ttl + math.ceil(self._leases.longest)
        token = nanoid(21)
        try:
            # A key is nearly always new, and then this is all there is to do.
            return await self._leases.create(
                Record(
                    scope=scope,
                    key_hash=key_hash,
                    fingerprint=print_,
                    created_at=now,
                    expires_at=expires,
                ),
                token,
            )
        except OutcomeUnknown:
            pass
        except ConditionFailed as failed:
            if failed.item is not None and not self._can_be_taken(failed.item, print_):
                raise
        return await self._leases.claim(
            Record.key(scope, key_hash),
            set_to("status", "open"),
            set_to("fingerprint", print_),
            set_if_absent("steps", {}),
            set_to("expires_at", expires),
            when=(attr("status").absent() | (attr("status") == "open"))
            & (attr("fingerprint").absent() | (attr("fingerprint") == print_)),
            token=token,
        )

    def _can_be_taken(self, record: Record, print_: bytes) -> bool:
        """Whether it is worth trying to take a record over; the store decides."""
        ends = record.lease_expires_at
        return (
            record.status == "open"
            and record.fingerprint == print_
            and (ends is None or ends <= self._store.now() - self._leases.skew)
        )

    def packed(self, value: object, kind: object) -> bytes | Exception:
        """A result as it is kept, or why it cannot be."""
        try:
            packed = pack(value, kind)
            self.check_size(packed)
        except Exception as error:  # noqa: BLE001 - encoding runs the value's own code
            return error
        return packed

    def completion(self, packed: bytes | Exception) -> tuple[Edit, ...]:
        """The changes that record a result. One that cannot be kept must not undo the work."""
        done = (set_to("status", "completed"), *self._ending())
        if isinstance(packed, bytes):
            return (*done, set_to("result", packed))
        name = "" if isinstance(packed, Misfit) else f"{type(packed).__name__}: "
        return (*done, set_to("result_lost", f"{name}{packed}"[:200]))

    def _failure(self, error: Exception) -> tuple[Edit, ...]:
        """The changes that record an error for good."""
        return (set_to("status", "failed"), *self._ending(), set_to("failure", Failure.of(error)))

    def _ending(self) -> tuple[Edit, ...]:
        now = self._store.now()
        return (
            set_to("completed_at", now),
            set_to("expires_at", now + self._ttl),
            set_to("steps", {}),
        )

    def check_size(self, packed: bytes) -> None:
        if len(packed) > self.max_result:
            raise ValueError(f"{len(packed)} bytes are more than {self.max_result}")

    async def _finish(self, lease: Lease, *changes: Edit) -> Record | None:
        """Complete the work, or find the result of a successor.

        The work is done: neither a cancellation nor a store that is away for a moment may lead to
        its being done again.
        """
        lease.settling = True
        return await asyncio.shield(self._record(lease, changes))

    async def _record(self, lease: Lease, changes: tuple[Edit, ...]) -> Record | None:
        closing = lease.closing(*changes)
        while True:
            try:
                await self._store.update(closing.key, *closing.changes, when=closing.when)
            except ConditionFailed as failed:
                lease.ended = True
                return _successors_record(failed)
            except (StoreUnavailable, TransactionConflict):
                # Perhaps it was carried out: then the next try finds the work completed.
                if not lease.held:
                    raise
                await self._leases.sleep(_POLL)
            else:
                lease.ended = True
                return None

    def _replay(self, record: Record, result: type[T] | None, terminal: Errors) -> T:
        if record.failure is not None:
            raise record.failure.rebuilt(terminal)
        if record.result is None:
            raise ResultUnavailable(f"{_LOST}: {record.result_lost}")
        try:
            return unpack(record.result, result)
        except Misfit as error:
            raise ResultUnavailable(f"{_LOST}: {error}") from error


def _successors_record(failed: ConditionFailed) -> Record:
    """The record that stands where we wanted to complete ours."""
    record = failed.item
    if record is None or record.status == "open":
        raise LeaseLost("another attempt has taken over") from failed
    return record  # type: ignore[no-any-return]


def _key(scope: str, key: str) -> Key[Record]:
    return Record.key(scope, secret_hash(key))


def _is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - how an object is called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _hinted(function: Callable[..., object]) -> Callable[..., object]:
    """Where a function's annotations are."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _arguments(function: Callable[..., object], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _ignore(outcome: Outcome, scope: str, key: str) -> None:
    """Nobody wants to know."""
