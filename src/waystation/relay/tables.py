"""What the relay keeps: sources and connections beside the accounts, events in their own table.

Attribute names are camelCase. `filters`, `transform`, `retry_config` and the like, and the headers
of an event, are JSON texts. Secrets are sealed. Times are milliseconds, `expires_at` seconds.

A delivery that ends with its first attempt has no row of its own: the attempt says it all. Until
then its event says that it is pending, and who is at it. What has to wait, and what is tried again,
has a row.

Open work is found by sparse index entries and nothing else: an event with deliveries that have no
row (`TODO`, by source), and a delivery that is not over (`LANE`, by connection), each by the time
when somebody else may take it over. Timers say when somebody must look at a source, a connection or
a replay again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.accounts import main
from waystation.queues import QueueSpec
from waystation.store import Index, Item, Table

if TYPE_CHECKING:
    from waystation.store import RawItem

_KEPT_SECONDS = 90 * 86_400
_LONGEST_TIMEOUT = 30
_COUNTERS = ("eventCount", "minuteCount", "failureStreak", "deliveryCount", "failureCount")

Status = Literal["active", "paused", "deleted"]
EventStatus = Literal["received", "processing", "filtered", "delivered", "retrying", "failed"]
DeliveryStatus = Literal["pending", "retrying", "delivered", "failed", "filtered"]

events = Table(
    "ferryhook-events",
    pk="PK",
    sk="SK",
    indexes=[
        Index("GSI1", pk="GSI1PK", sk="GSI1SK", project="keys"),
        Index("GSI2", pk="GSI2PK", sk="GSI2SK", project="keys"),
        Index("GSI3", pk="GSI3PK", sk="GSI3SK", project="keys"),
    ],
    ttl="expiresAt",
    stream="dynamodb",
    apart=["body", "bodyBytes", "headers", "sealed"],
)


def _paused(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """Another service's source or connection. With a status that we do not know it gets nothing,
    and says why."""
    if "status" in wrong:
        reason = f"another service gave it the status {str(raw.get('status'))[:50]!r}"
    elif uncountable := [n for n in _COUNTERS if not isinstance(raw.get(n, 0), int | Decimal)]:
        reason = f"another service wrote a {uncountable[0]} that is not a number"
    else:
        return {}
    return {"status": "paused", "disabledReason": reason}


def _event(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """Another service's event, as far as it can be told."""
    received = int(str(raw["SK"]).split("#")[1])
    found: dict[str, Any] = {"method": "POST", "headers": "{}"}
    found |= {"receivedAt": received, "expiresAt": received // 1000 + _KEPT_SECONDS}
    return {name: value for name, value in found.items() if name in wrong}


class Source(
    Item,
    table=main,
    pk="USER#{user_id}",
    sk="SRC#{source_id}",
    indexes={"GSI3": ("SRCID#{source_id}", "SOURCE")},
    mend=_paused,
    rename="camel",
    kw_only=True,
):
    """Where webhooks come in. `minute_count` counts what it has taken in one `minute`."""

    source_id: str
    user_id: str
    name: str
    provider: str
    signing_secret: str | None = None
    signing_algorithm: str | None = None
    verification: str | None = None
    dedupe: str | None = None
    public_url: str | None = None
    status: Status = "active"
    connection_count: int = 0
    event_count: int = 0
    minute: int | None = None
    minute_count: int = 0
    last_event_at: str | None = None
    created_at: str
    updated_at: str | None = None


class Connection(
    Item,
    table=main,
    pk="SRC#{source_id}",
    sk="CONN#{connection_id}",
    mend=_paused,
    rename="camel",
    kw_only=True,
):
    """Where a source's webhooks go: to a URL, or to an inbox.

    The query of the URL may hold credentials: it is sealed in `destination_query`.
    `failure_streak` counts the attempts that failed since the last one that did not, and
    `failing_since` is the second of the first of them.
    """

    connection_id: str
    source_id: str
    user_id: str
    name: str
    destination_url: str = ""
    destination_query: str | None = None
    inbox: str | None = None
    signing_secret: str
    filters: str | None = None
    transform: str | None = None
    retry_config: str | None = None
    rate_limit: str | None = None
    headers: str | None = None
    timeout_seconds: int = 15
    concurrency: int = 20
    status: Status = "active"
    disabled_reason: str | None = None
    disabled_at: str | None = None
    failure_streak: int = 0
    failing_since: int | None = None
    alerted_at: int = 0
    delivery_count: int = 0
    failure_count: int = 0
    created_at: str
    updated_at: str

    @property
    def seconds(self) -> int:
        """How long an attempt may take, whatever another service wrote."""
        return min(_LONGEST_TIMEOUT, max(1, self.timeout_seconds))


class Owner(Item, table=main, pk="ID#{thing_id}", sk="OWNER", rename="camel", kw_only=True):
    """Whose a source or connection is: found by its id at once, where an index may lag."""

    thing_id: str
    user_id: str
    source_id: str


class Event(
    Item,
    table=events,
    pk="SRC#{source_id}",
    sk="EVT#{received_at:013d}#{event_id}",
    indexes={
        "GSI1": ("EVTID#{event_id}", "EVENT"),
        "GSI2": ("TODO#{todo}", "{due_at:013d}#{event_id}"),
        "GSI3": ("BY#{source_id}#{status}", "{received_at:013d}#{event_id}"),
    },
    mend=_event,
    rename="camel",
    kw_only=True,
):
    """A webhook that was received.

    A body that is not UTF-8 is in `body_bytes`. `sealed` has the query and the values of those
    headers that may be credentials; only others write a `query_string`. `status` may be one that
    only they know. `outcomes` has the state of every connection, as
    JSON, and `status` follows from it; `revision` counts the changes of both. `todo` is the
    source's id while some of its deliveries have no row. Whoever works on them signs with a `claim`
    and moves `due_at` ahead of its own time limit, so that another takes over from one that died.
    """

    event_id: str
    source_id: str
    user_id: str
    status: str = "received"
    headers: str
    body: str
    body_bytes: bytes | None = None
    query_string: str | None = None
    sealed: str | None = None
    path: str | None = None
    source_ip: str
    content_type: str | None = None
    method: str
    received_at: int
    processed_at: int | None = None
    delivered_at: int | None = None
    outcomes: str | None = None
    attempt_count: int = 0
    revision: int = 0
    todo: str | None = None
    due_at: int | None = None
    claim: str | None = None
    expires_at: int

    @property
    def content(self) -> bytes:
        """The body as it came."""
        return self.body.encode() if self.body_bytes is None else self.body_bytes

    @property
    def size(self) -> int:
        """At most how many bytes it is stored in."""
        texts = len(self.body) + len(self.headers) + len(self.sealed or "")
        return 4 * texts + len(self.body_bytes or b"")


class Delivery(
    Item,
    table=events,
    pk="EVT#{event_id}",
    sk="DLV#{delivery_id}",
    indexes={"GSI2": ("LANE#{lane}", "{due_at:013d}#{delivery_id}")},
    rename="camel",
    kw_only=True,
):
    """One event on its way to one connection, where it must wait or has been tried before.

    While it is open, `lane` is the connection's id and `due_at` the next attempt. Whoever attempts
    it writes a `claim` and moves `due_at` behind its own time limit, so that another takes over
    from one that died.
    """

    event_id: str
    delivery_id: str
    connection_id: str
    source_id: str
    user_id: str
    received_at: int
    replay_id: str | None = None
    status: DeliveryStatus = "pending"
    attempts: int = 0
    lane: str | None = None
    due_at: int | None = None
    claim: str | None = None
    error: str | None = None
    created_at: int
    updated_at: int
    expires_at: int


class Attempt(
    Item, table=events, pk="EVT#{event_id}", sk="ATT#{sequence:06d}", rename="camel", kw_only=True
):
    """One try to deliver an event. `status_code` is 0 when there was no answer.

    `sequence` counts the attempts of the event, for all connections and replays: the seed's key
    without its collisions. `attempt_number` counts those of the delivery, `delivery_status` is what
    it made of it.
    """

    event_id: str
    sequence: int
    connection_id: str
    delivery_id: str | None = None
    attempt_number: int
    destination_url: str
    status_code: int
    response_body: str | None = None
    latency_ms: int
    error: str | None = None
    attempted_at: int
    delivery_status: DeliveryStatus | None = None
    delivery_created_at: int | None = None
    replay_id: str | None = None
    expires_at: int | None = None


class Seen(
    Item, table=events, pk="SRC#{source_id}", sk="SEEN#{digest}", rename="camel", kw_only=True
):
    """That a source has sent this before, and which event it became."""

    source_id: str
    digest: str
    event_id: str
    expires_at: int


class Replay(Item, table=events, pk="RPL#{replay_id}", sk="REPLAY", rename="camel", kw_only=True):
    """A bulk replay: what was asked for, and how far it has come."""

    replay_id: str
    user_id: str
    source_id: str
    status: Literal["running", "done", "failed"] = "running"
    event_status: EventStatus | None = None
    from_ms: int
    to_ms: int
    event_ids: list[str] = msgspec.field(default_factory=list)
    connection_ids: list[str] = msgspec.field(default_factory=list)
    events: int = 0
    deliveries: int = 0
    position: str | None = None
    error: str | None = None
    created_at: int
    finished_at: int | None = None
    expires_at: int


class Hour(Item, table=events, pk="USER#{user_id}", sk="HOUR#{hour}", rename="camel", kw_only=True):
    """What an account's events did in an hour. `latency_n` counts answers in the n-th band."""

    user_id: str
    hour: str
    received: int = 0
    filtered: int = 0
    delivered: int = 0
    failed: int = 0
    retried: int = 0
    latency_0: int = 0
    latency_1: int = 0
    latency_2: int = 0
    latency_3: int = 0
    latency_4: int = 0
    latency_5: int = 0
    latency_6: int = 0
    latency_7: int = 0
    latency_8: int = 0
    latency_9: int = 0
    latency_10: int = 0
    latency_11: int = 0
    latency_12: int = 0
    latency_13: int = 0
    latency_14: int = 0
    latency_15: int = 0
    latency_16: int = 0
    latency_17: int = 0
    latency_18: int = 0
    latency_19: int = 0
    expires_at: int


class SourceDay(
    Item,
    table=events,
    pk="USER#{user_id}",
    sk="DAY#{day}#{source_id}",
    rename="camel",
    kw_only=True,
):
    """What a source's events did on a day."""

    user_id: str
    day: str
    source_id: str
    received: int = 0
    delivered: int = 0
    failed: int = 0
    expires_at: int


RECEIVED = QueueSpec(name="relay-received", visibility=60, max_receives=10)
"""Events on their way to a worker in another process."""

TABLES = [events]
QUEUES = [RECEIVED]
