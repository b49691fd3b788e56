"""The desk: everything that its parts have in common, and what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.desk.acting.carrying import Carrier
from waystation.desk.acting.lookups import Lookups
from waystation.desk.acting.pacing import Pace
from waystation.desk.acting.planning import Planner
from waystation.desk.acting.richpanel import Richpanel
from waystation.desk.archive import Archive
from waystation.desk.conversations import Conversations
from waystation.desk.deciding.judging import Judge, imported
from waystation.desk.deciding.rules import load_rules
from waystation.desk.letters import Letters
from waystation.desk.metrics import DeskMetrics
from waystation.desk.receiving.credentials import Credentials
from waystation.desk.receiving.envelopes import read, shown_id
from waystation.desk.receiving.intake import Intake
from waystation.desk.switches import SwitchBoard
from waystation.desk.tables import (
    EVENTS,
    PROCESSING,
    AuditAction,
    ConversationState,
    EventRecord,
    Unknown,
)
from waystation.desk.worker import Worker
from waystation.errors import InvalidInput, NotFound, SettingsError
from waystation.times import iso, milliseconds_of

if TYPE_CHECKING:
    from waystation.desk.settings import DeskSettings
    from waystation.seam import Parts

_UNKNOWN = "desk unknown"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class Desk:
    def __init__(self, parts: Parts, settings: DeskSettings) -> None:
        store, vault = parts.store, parts.vault
        self.store = store
        self._cursors = parts.cursors
        self._settings = settings
        self.metrics = DeskMetrics()
        self.rules = load_rules(Path(settings.desk_rules) if settings.desk_rules else None)
        self.judge = Judge(
            self.rules,
            imported("desk_decider", settings.desk_decider) if settings.desk_decider else None,
            settings.desk_decider_seconds,
            self.metrics.decider_failures.inc,
        )
        self.queue = parts.queues[EVENTS]
        self.archive = Archive(parts.blobs, vault, settings.desk_archive_days, store.clock)
        self.credentials = Credentials(settings.desk_hmac_secret, settings.desk_webhook_tokens)
        self.intake = Intake(store, vault, self.queue, self.credentials, self.archive, self.metrics)
        self.switches = SwitchBoard(
            store, parts.cursors, self.rules.templates, parts.offer("relay.owns")
        )
        self.letters = Letters(
            store, vault, parts.cursors, self.queue, excerpts=settings.desk_excerpts
        )
        self.vendor: Richpanel | None = None
        if settings.richpanel_url and settings.richpanel_api_key:
            self.vendor = Richpanel(
                parts.outbound,
                settings.richpanel_url,
                settings.richpanel_api_key,
                Pace(store, "richpanel"),
                self.metrics,
                store.clock,
            )
        look = imported("desk_orders", settings.desk_orders) if settings.desk_orders else None
        self.lookups = Lookups(store, vault, look, settings.desk_decider_seconds)
        self.carrier = Carrier(
            store,
            self.vendor,
            parts.offer("relay.receive"),
            self.metrics,
            event_days=settings.desk_event_days,
            audit_days=settings.desk_audit_days,
        )
        self.worker = Worker(
            store,
            vault,
            self.switches,
            Conversations(store, settings.desk_state_days),
            Planner(
                store,
                vault,
                self.judge,
                self.lookups,
                flow_days=settings.desk_flow_days,
                outbound=settings.desk_outbound,
                recipients=settings.desk_recipients,
            ),
            self.carrier,
            self.metrics,
            event_days=settings.desk_event_days,
            known_intents={intent.name for intent in self.rules.file.intents} | {"unknown"},
        )

    @property
    def outbound(self) -> bool:
        """Whether the desk acts, rather than records what it would do."""
        return self._settings.desk_outbound

    # What is shown

    async def conversation(self, id_: str) -> ConversationState:
        state = await self.store.get(ConversationState.key(shown_id(id_)))
        if state is None:
            raise NotFound("there is no such conversation")
        return state

    async def audit(
        self, id_: str, limit: int, cursor: str | None
    ) -> tuple[list[AuditAction], str | None]:
        """What was done in a conversation, the latest first."""
        conversation = shown_id(id_)
        scope = f"desk audit {conversation}"
        query = AuditAction.query(conversation)
        return await self._cursors.page(self.store, query, limit, cursor, scope, reverse=True)

    async def event(self, event_id: str) -> EventRecord:
        record = await self.store.get(EventRecord.key(event_id))
        if record is None:
            raise NotFound("there is no such event; one that is still queued is not shown yet")
        return record

    async def unknowns(self, limit: int, cursor: str | None) -> tuple[list[Unknown], str | None]:
        """Replies that a person has to look for, the oldest first."""
        return await self._cursors.page(self.store, Unknown.query(), limit, cursor, _UNKNOWN)

    async def settle(self, unknown_id: str, *, sent: bool) -> None:
        """A person has looked whether a reply was sent."""
        async for parked in self.store.iterate(Unknown.query()):
            if parked.unknown_id == unknown_id:
                await self.carrier.settle(parked, sent=sent)
                return
        raise NotFound("there is no such reply")

    # What is done now and then

    async def replay(self, first: str, last: str) -> tuple[int, int]:
        """Queue archived events that were never dealt with: how many, of how many. Of what is too
        old to be remembered, nobody knows whether it was."""
        for name, day in (("from", first), ("to", last)):
            milliseconds_of(day if _DAY.fullmatch(day) else "?", name, 0)
        oldest = iso(self.store.clock() - (self._settings.desk_event_days - 1) * 86_400)
        queued = found = 0
        async for archived in self.archive.read(first, last):
            if archived.received_at < oldest:
                continue
            found += 1
            try:
                envelope = read(archived.body, archived.received_at)
            except InvalidInput:
                continue
            record = await self.store.get(EventRecord.key(envelope.event_id))
            if record is None or record.status == PROCESSING:
                await self.intake.queue(envelope)
                queued += 1
        return queued, found

    async def tend(self) -> None:
        await self.letters.tick()
        await self.archive.sweep()

    async def check_senders(self) -> str:
        """What the doctor says about who may send events."""
        if not self.credentials.any:
            return "no secret and no token: every support event is refused"
        return "senders are known by their signature or token"

    async def check_vendor(self) -> str:
        if self.vendor is None:
            return "not set up: the desk records what it would do"
        if not await self.vendor.alive():
            raise SettingsError("Richpanel's API does not answer, or refuses the key")
        return "Richpanel answers" + ("" if self._settings.desk_outbound else "; outbound is off")
