"""How the desk is doing."""

from __future__ import annotations

from prometheus_client import Counter, Histogram


class DeskMetrics:
    def __init__(self) -> None:
        self.received = Counter(
            "waystation_desk_received", "Support events taken in", ["status"], registry=None
        )
        self.processed = Counter(
            "waystation_desk_processed",
            "Support events by what became of them",
            ["outcome"],
            registry=None,
        )
        self.decisions = Counter(
            "waystation_desk_decisions", "Decisions by intent", ["intent"], registry=None
        )
        self.actions = Counter(
            "waystation_desk_actions",
            "Actions by what became of them",
            ["type", "result"],
            registry=None,
        )
        self.decider_failures = Counter(
            "waystation_desk_decider_failures",
            "Messages that the rules had to decide on, because the decider failed",
            registry=None,
        )
        self.vendor = Histogram(
            "waystation_desk_vendor_seconds",
            "How long the vendor takes to answer",
            ["method", "status"],
            buckets=(0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
            registry=None,
        )

    def collectors(self) -> list[Counter | Histogram]:
        return [
            self.received,
            self.processed,
            self.decisions,
            self.actions,
            self.decider_failures,
            self.vendor,
        ]
