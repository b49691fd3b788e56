"""How the gate is doing."""

from __future__ import annotations

from prometheus_client import Counter, Histogram


class GateMetrics:
    def __init__(self) -> None:
        self.checks = Counter(
            "waystation_gate_checks",
            "Requests at the gate, by what became of them",
            ["outcome", "reason"],
            registry=None,
        )
        self.cache = Counter(
            "waystation_gate_cache",
            "Existence checks that were answered from memory, or not",
            ["result"],
            registry=None,
        )
        self.slack = Histogram(
            "waystation_gate_slack_seconds",
            "How long Slack takes to answer",
            ["method"],
            buckets=(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0),
            registry=None,
        )

        # Looked up once: they count almost every request.
        self.passed = self.checks.labels("passed", "")
        self.hits = self.cache.labels("hit")

    def observe(self, method: str, seconds: float) -> None:
        self.slack.labels(method).observe(seconds)

    def collectors(self) -> list[Counter | Histogram]:
        return [self.checks, self.cache, self.slack]
