"""Switches: what the desk may do, for all processes, within seconds. In doubt it does less."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystation.desk.deciding.decisions import CUSTOM
from waystation.desk.receiving.envelopes import CHANNELS
from waystation.desk.tables import SwitchChange, Switches
from waystation.errors import (
    ConditionFailed,
    Conflict,
    InvalidInput,
    StoreError,
    TransactionCancelled,
    UnreadableItem,
)
from waystation.ids import nanoid
from waystation.store import Put
from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import Collection

    from waystation.patterns import Cursors
    from waystation.seam import Offer
    from waystation.store import Store

log = logging.getLogger(__name__)

_FAR_SECONDS = 10.0
_NEAR_SECONDS = 1.0
_OLDEST_SECONDS = 30.0
_TRIES = 5
_CHANGES = "desk switches"
_KEPT_DAYS = 365


class SwitchState(msgspec.Struct, frozen=True, kw_only=True):
    """The switches as they stand; their defaults are the safe side."""

    safe_mode: bool = True
    automation_enabled: bool = False
    channels: list[str] | None = None
    templates: dict[str, bool] = {}
    source_id: str | None = None
    source_owner: str | None = None

    def lets(self, channel: str) -> bool:
        """Whether a channel may get automatic replies."""
        return self.channels is None or channel in self.channels


class SwitchInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to set. What is left out stays as it is."""

    safe_mode: bool | UnsetType = UNSET
    automation_enabled: bool | UnsetType = UNSET
    channels: (
        Annotated[
            list[str],
            Meta(max_length=20, description="that may get automatic replies; null is all"),
        ]
        | UnsetType
        | None
    ) = UNSET
    templates: (
        Annotated[
            dict[str, bool],
            Meta(max_length=100, description="whether a template may be sent"),
        ]
        | UnsetType
    ) = UNSET
    source_id: (
        Annotated[
            str,
            Meta(max_length=64, description="the relay's source that gets what is decided"),
        ]
        | UnsetType
        | None
    ) = UNSET


class SwitchBoard:
    def __init__(
        self,
        store: Store,
        cursors: Cursors,
        templates: Collection[str],
        owns_source: Offer,
    ) -> None:
        self._store = store
        self._cursors = cursors
        self._templates = {*templates, CUSTOM}
        self._owns_source = owns_source
        self._known = SwitchState()
        self._read_at = float("-inf")

    async def current(self) -> SwitchState:
        """The switches, as they were a few seconds ago at the most."""
        now = self._store.clock()
        age = now - self._read_at
        if 0 <= age < (_NEAR_SECONDS if self._store.near else _FAR_SECONDS):
            return self._known
        try:
            row = await self._store.get(Switches.key())
        except UnreadableItem:
            log.exception("the switches cannot be read: the desk is in safe mode")
            self._known = SwitchState()
        except StoreError as error:
            log.warning("the switches cannot be read now: %s", error)
            return self._known if 0 <= age < _OLDEST_SECONDS else SwitchState()
        else:
            self._known = _state(row)
        self._read_at = now
        return self._known

    async def shown(self) -> Switches:
        """The switches with who has set them, as they stand now."""
        try:
            return await self._store.get(Switches.key()) or Switches()
        except UnreadableItem:  # as they are heeded; whoever sets them sets them anew
            await self._store.delete(Switches.key())
            return Switches()

    async def set(self, by: str, given: SwitchInput) -> Switches:
        """Set switches, and write down who did."""
        changes = msgspec.structs.asdict(given)
        changes = {name: value for name, value in changes.items() if value is not UNSET}
        await self._check(by, changes)
        for _ in range(_TRIES):
            before = await self.shown()
            merged = {"templates": before.templates | changes.get("templates", {})}
            after = msgspec.structs.replace(before, **changes | merged)
            if "source_id" in changes:
                after.source_owner = by if after.source_id is not None else None
            now = self._store.clock()
            after.updated_at, after.updated_by = iso(now), by
            change = SwitchChange(
                at=iso(now),
                change_id=nanoid(8),
                by=by,
                before=_text(before),
                after=_text(after),
                expires_at=int(now) + _KEPT_DAYS * 86_400,
            )
            try:
                await self._store.transact(Put(after), Put(change))
            except (TransactionCancelled, ConditionFailed):
                continue  # somebody else has set them: look again
            self._known, self._read_at = _state(after), now
            return after
        raise Conflict("others are setting the switches at the same time: try again")

    async def _check(self, by: str, changes: dict[str, Any]) -> None:
        for channel in changes.get("channels") or ():
            if channel not in CHANNELS:
                raise InvalidInput("channels", f"{channel!r} is not one of {', '.join(CHANNELS)}")
        for template in changes.get("templates") or ():
            if template not in self._templates:
                known = ", ".join(sorted(self._templates))
                raise InvalidInput("templates", f"{template!r} is not one of {known}")
        source = changes.get("source_id")
        if source is not None and not await self._owns_source(by, source):
            raise InvalidInput("source_id", "there is no such source of yours")

    async def changes(
        self, limit: int, cursor: str | None
    ) -> tuple[list[SwitchChange], str | None]:
        """Who has set what, the latest first."""
        return await self._cursors.page(
            self._store, SwitchChange.query(), limit, cursor, _CHANGES, reverse=True
        )


def _state(row: Switches | None) -> SwitchState:
    if row is None:
        return SwitchState()
    return SwitchState(
        safe_mode=row.safe_mode,
        automation_enabled=row.automation_enabled,
        channels=row.channels,
        templates=row.templates,
        source_id=row.source_id,
        source_owner=row.source_owner,
    )


def _text(row: Switches) -> str:
    return msgspec.json.encode(_state(row)).decode()
