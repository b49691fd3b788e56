"""Publishing: the body first, under a name of its own, then everything that points to it in one
transaction that only the holder of the lease can make."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import (
    BlobError,
    Conflict,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    TransactionCancelled,
    TransactionConflict,
    WaystationError,
)
from waystation.pages.http.fields import Headers
from waystation.pages.http.policies import Policy
from waystation.pages.keeping.encodings import encoded, worth_encoding
from waystation.pages.keeping.entries import LARGEST_FENCE, Entry, entry_of, pairs_of
from waystation.pages.keeping.places import BLOBS
from waystation.pages.keeping.shelf import SUFFIXES
from waystation.pages.tables import Listed, PageMeta, PageVersion
from waystation.patterns import newer
from waystation.store import Delete, Put, Update, attr, exists, remove, set_to

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Held
    from waystation.pages.keeping.places import Place
    from waystation.pages.keeping.shelf import Shelf
    from waystation.patterns import Lease
    from waystation.store import Action, Condition, Edit

log = logging.getLogger(__name__)

_LONGEST_LIFE = 400 * 86_400
KEEP_SECONDS = 86_400
"""How long a page is kept after it can be of no more use: for who looks at what happened."""

_VERSION_SECONDS = 90 * 86_400
_TRIES = 10


class Rendered(msgspec.Struct, frozen=True):
    """A page that was just generated, and what may be done with it."""

    status: int
    headers: Headers
    body: bytes
    policy: Policy
    etag: str | None = None
    tags: tuple[str, ...] = ()
    owner: str | None = None
    account: str = ""
    """Whose allowance it counts against."""

    rest: AsyncIterator[bytes] | None = None
    """What follows the body of one that is not kept."""

    seq: int | None = None
    """How many purges there had been, where that was before its lease was taken."""


class Publisher:
    """Makes pages what everybody sees."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._store = shelf.store
        self._blobs = shelf.blobs
        self._clearing: set[asyncio.Task[None]] = set()

    async def publish(
        self,
        lease: Lease,
        rendered: Rendered,
        known: Entry | None,
        seq: int,
        place: Place,
        keep: int,
    ) -> Held:
        """Publish a page and give up the lease; LeaseLost if another has published since. `keep` is
        how many versions of it there shall be."""
        digest = sha256(rendered.body).hexdigest()
        bodies: dict[str, bytes] = {"": rendered.body}
        actions: list[Action] = []
        old: list[str] = []
        if known is not None and known.owner != rendered.owner:
            known = None  # its versions are another's
        if known is not None and _same(known, rendered, digest):
            s3_key, encodings = known.s3_key, list(known.encodings)
            versions = list(known.versions)
        else:
            s3_key = place.new_blob()
            bodies |= await self._encoded(rendered)
            encodings = sorted(set(bodies) - {""})
            await asyncio.gather(
                *(self._blobs.put(s3_key + SUFFIXES[name], body) for name, body in bodies.items())
            )
            versions, dropped = _versions(known, keep)
            if known is not None and known.fence in versions:
                actions.append(Put(_version(known, self._store.now())))
            actions += [Delete(PageVersion.key(place.pk, number)) for number in dropped]
            actions.append(Put(_listed(place)))
            old = await self._bodies_of(place, dropped)
        meta = self._meta(rendered, place, s3_key, digest, encodings, lease.fence, seq, versions)
        await self._commit(lease, meta, actions)
        self._clear(old)
        entry = entry_of(place, meta, self._store.clock())
        assert entry is not None
        return self._shelf.put(entry, bodies, seq)

    async def _encoded(self, rendered: Rendered) -> dict[str, bytes]:
        if rendered.policy.no_transform or not worth_encoding(rendered.headers, rendered.body):
            return {}
        return await asyncio.to_thread(encoded, rendered.body)

    def _meta(
        self,
        rendered: Rendered,
        place: Place,
        s3_key: str,
        digest: str,
        encodings: list[str],
        fence: int,
        seq: int,
        versions: list[int],
    ) -> PageMeta:
        policy = rendered.policy
        now = self._store.now()
        life = policy.fresh + max(policy.swr, policy.sie) + KEEP_SECONDS
        return PageMeta(
            pk=place.pk,
            s3_key=s3_key,
            generated_at=now - policy.age,
            revalidate_seconds=policy.fresh,
            etag=rendered.etag,
            fence=fence,
            owner=rendered.owner,
            url=place.url,
            variant=place.variant or None,
            status=rendered.status,
            headers=pairs_of(rendered.headers),
            size=len(rendered.body),
            digest=digest,
            encodings=encodings,
            swr_seconds=policy.swr,
            sie_seconds=policy.sie,
            strict=policy.strict,
            unmarked=policy.unmarked,
            pinned=None,
            tags=list(rendered.tags),
            seq=seq,
            versions=versions,
            ttl=now + life,
        )

    async def renew(
        self, lease: Lease, known: Entry, headers: Headers, policy: Policy, seq: int
    ) -> Held:
        """Publish that a page is as it was: only its times and headers change."""
        now = self._store.now()
        life = policy.fresh + max(policy.swr, policy.sie) + KEEP_SECONDS
        found = await self._store.get(known.place.meta, expired=True)
        if found is None or not known.is_of(found):
            raise LeaseLost(f"{known.place.url} was published by another")
        meta: PageMeta = msgspec.structs.replace(
            found,
            generated_at=now - policy.age,
            revalidate_seconds=policy.fresh,
            fence=lease.fence,
            headers=pairs_of(headers),
            swr_seconds=policy.swr,
            sie_seconds=policy.sie,
            strict=policy.strict,
            unmarked=policy.unmarked,
            pinned=None,
            seq=seq,
            ttl=now + life,
        )
        await self._commit(lease, meta, [])
        entry = entry_of(known.place, meta, self._store.clock())
        assert entry is not None
        held = self._shelf.memory.get(known.place)
        bodies = held.bodies if held is not None and held.entry.s3_key == entry.s3_key else {}
        return self._shelf.put(entry, bodies, seq)

    async def _commit(self, lease: Lease, meta: PageMeta, actions: list[Action]) -> None:
        try:
            closing = lease.closing(set_to("ttl", (meta.ttl or 0) + KEEP_SECONDS))
            odd = ~attr("fence").is_type("N") | (attr("fence") >= LARGEST_FENCE)
            written = _written(meta, newer(lease.fence) | odd)
            await lease.publish(written, *actions, closing=closing)
        except TransactionCancelled as error:
            raise LeaseLost("a page was published under a later lease") from error
        except TransactionConflict as error:
            raise LeaseLost("others kept writing the same page") from error
        except OutcomeUnknown:
            found = await self._store.get(PageMeta.key(meta.pk), expired=True)
            if found is None or (found.fence, found.s3_key) != (meta.fence, meta.s3_key):
                raise

    async def give_up(self, lease: Lease, current: Held | None) -> None:
        """Let others have a page that was not published. The lease's row goes with time, but not
        before the page: those that cannot be kept leave nothing behind."""
        seconds = KEEP_SECONDS if current is None else _LONGEST_LIFE
        closing = lease.closing(set_to("ttl", self._store.now() + seconds))
        with suppress(WaystationError):  # then the lease runs out
            await lease.publish(closing=closing)

    async def rollback(self, place: Place, owner: str | None) -> Held:
        """Make a page what it was before, until it is purged. Whoever is generating it now will
        not be able to publish it."""
        for _ in range(_TRIES):
            meta = await self._store.get(place.meta)
            lock = await self._store.get(place.lock, expired=True)
            numbers = list(meta.versions or ()) if meta is not None else []
            if meta is None or not numbers or meta.owner != owner:
                raise NotFound("there is no earlier version of this page")
            version = await self._store.get(PageVersion.key(place.pk, numbers[-1]))
            if version is None:
                raise NotFound("there is no earlier version of this page")
            state = await self._shelf.purges.state(place.scope, now=True)
            fence = max(meta.fence or 0, lock.fence if lock is not None else 0) + 1
            back = _back_to(version, meta, fence, state.seq, self._store.now(), numbers[:-1])
            unchanged = (attr("fence") == meta.fence) & (attr("s3_key") == meta.s3_key)
            closing: list[Edit] = [
                set_to("fence", fence),
                remove("lease_token"),
                remove("lease_expires_at"),
                remove("ttl"),
            ]
            seen = attr("fence").absent() if lock is None else attr("fence") == lock.fence
            try:
                await self._store.transact(
                    _written(back, unchanged),
                    Update(place.lock, *closing, when=seen),
                    Delete(PageVersion.key(place.pk, numbers[-1]), when=exists()),
                )
            except (TransactionCancelled, TransactionConflict):
                continue
            entry = entry_of(place, back, self._store.clock())
            assert entry is not None
            return self._shelf.put(entry, {}, state.seq)
        raise Conflict("the page kept being published by others: try again")

    async def _bodies_of(self, place: Place, numbers: list[int]) -> list[str]:
        """The bodies that only these versions have."""
        if not numbers:
            return []
        found = await self._store.batch_get([PageVersion.key(place.pk, n) for n in numbers])
        return [each.s3_key for each in found if each is not None and _is_ours(each.s3_key)]

    def _clear(self, keys: list[str]) -> None:
        """Remove bodies that nothing points to any more. Those that are forgotten here are swept
        later."""
        if not keys:
            return
        task = asyncio.create_task(self._remove(keys))
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    async def _remove(self, keys: list[str]) -> None:
        for key in keys:
            for suffix in SUFFIXES.values():
                with suppress(BlobError):
                    await self._blobs.delete(key + suffix)

    async def close(self) -> None:
        await asyncio.gather(*self._clearing, return_exceptions=True)


def _same(known: Entry, rendered: Rendered, digest: str) -> bool:
    """Whether a page was generated as it was before."""
    return (
        known.digest == digest
        and known.status == rendered.status
        and known.etag == rendered.etag
        and _is_ours(known.s3_key)
    )


def _is_ours(s3_key: str) -> bool:
    return s3_key.startswith(f"{BLOBS}/")


def _versions(known: Entry | None, keep: int) -> tuple[list[int], list[int]]:
    """The numbers of the versions to be kept beside a new one, and of those to go."""
    if known is None:
        return [], []
    numbers = [number for number in known.versions if number != known.fence] + [known.fence]
    cut = max(0, len(numbers) - (keep - 1))
    return numbers[cut:], [number for number in numbers[:cut] if number != known.fence]


def _written(meta: PageMeta, when: Condition) -> Update[Any]:
    """Write a row on a condition. What others keep beside our attributes stays."""
    edits: list[Edit] = []
    for field in msgspec.structs.fields(PageMeta):
        value = getattr(meta, field.name)
        if field.name == "pk":
            continue
        edits.append(remove(field.name) if value is None else set_to(field.name, value))
    return Update(PageMeta.key(meta.pk), *edits, when=when)


def _version(known: Entry, now: int) -> PageVersion:
    """What a page was, for going back to it."""
    return PageVersion(
        pk=known.place.pk,
        number=known.fence,
        s3_key=known.s3_key,
        generated_at=known.generated_at,
        etag=known.etag,
        status=known.status,
        headers=pairs_of(known.headers),
        size=known.size or 0,
        digest=known.digest or "",
        encodings=list(known.encodings),
        tags=list(known.tags),
        ttl=now + _VERSION_SECONDS,
    )


def _back_to(
    version: PageVersion, meta: PageMeta, fence: int, seq: int, now: int, numbers: list[int]
) -> PageMeta:
    return msgspec.structs.replace(
        meta,
        s3_key=version.s3_key,
        generated_at=now,
        etag=version.etag,
        fence=fence,
        status=version.status,
        headers=version.headers,
        size=version.size,
        digest=version.digest,
        encodings=version.encodings,
        tags=version.tags,
        pinned=True,
        seq=seq,
        versions=numbers,
        ttl=None,
    )


def _listed(place: Place) -> Listed:
    return Listed(
        scope=place.scope,
        label=place.label,
        pk_of=place.pk,
        url=place.url,
        variant=place.variant or None,
    )
