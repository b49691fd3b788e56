"""How the inbox is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


class InboxMetrics:
    def __init__(self) -> None:
        self.drift = Counter(
            "waystation_inbox_drift",
            "By how much counters were found to be wrong when they were recounted",
            ["counter"],
            registry=None,
        )
        self.published = Counter(
            "waystation_inbox_published",
            "Messages published, by audience",
            ["audience"],
            registry=None,
        )
        self.passed_over = Counter(
            "waystation_inbox_passed_over",
            "Changes of other services that could not be accounted for",
            registry=None,
        )
        self.streams = Gauge("waystation_inbox_streams", "Streams that are open", registry=None)

    def collectors(self) -> list[Collector]:
        return [self.drift, self.published, self.passed_over, self.streams]
