"""How the pages are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from waystation.pages.keeping.memory import Memory


class PageMetrics:
    def __init__(self, memory: Memory) -> None:
        self.answers = Counter(
            "waystation_pages_answers",
            "Requests for pages, by how they were answered and, if not from the cache, why",
            ["result", "reason"],
            registry=None,
        )
        self._memory = _MemoryGauge(memory)

        # Looked up once: they count almost every request.
        self.hit = self.answers.labels("hit", "")
        self.stale = self.answers.labels("stale", "")

    def collectors(self) -> list[Collector]:
        return [self.answers, self._memory]


class _MemoryGauge(Collector):
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "waystation_pages_memory_bytes", "Bytes of pages in memory", value=self._memory.bytes
        )
        yield GaugeMetricFamily(
            "waystation_pages_memory_pages", "Pages in memory", value=len(self._memory)
        )
