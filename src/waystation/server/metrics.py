"""Metrics in Prometheus' format."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter as Counting
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from waystation.errors import WaystationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waystation.queues import Queue
    from waystation.server.runtime import Runtime

log = logging.getLogger(__name__)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_DEPTH_SECONDS = 2.0
_DEPTH_EVERY = 10.0
"""Counting costs, and anybody may ask."""


class _Times:
    """How long a route's answers took."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.buckets = [0] * (len(_BOUNDS) + 1)


class Requests(Collector):
    """Requests, counted on the event loop alone: without the locks that a counter has."""

    def __init__(self) -> None:
        self._counts: Counting[tuple[str, str, int]] = Counting()
        self._times: defaultdict[str, _Times] = defaultdict(_Times)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self._counts[method, route, status] += 1
        times = self._times[route]
        times.total += seconds
        times.buckets[bisect_left(_BOUNDS, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "waystation_http_requests",
            "Requests by route and status",
            labels=["method", "route", "status"],
        )
        for (method, route, status), number in self._counts.items():
            counts.add_metric([method, route, str(status)], number)
        yield counts
        seconds = HistogramMetricFamily(
            "waystation_http_request_seconds", "Time to answer", labels=["route"]
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        for route, times in self._times.items():
            upto = list(zip(bounds, accumulate(times.buckets), strict=True))
            seconds.add_metric([route], upto, times.total)
        yield seconds


class Metrics:
    """What is counted and measured, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._looking = asyncio.Lock()
        self._look_again = 0.0
        self.requests = Requests()
        self.registry.register(self.requests)
        self.idempotency = Counter(
            "waystation_idempotency", "Outcomes of keyed work", ["outcome"], registry=self.registry
        )
        self._depth = Gauge(
            "waystation_queue_messages", "Messages", ["queue", "state"], registry=self.registry
        )
        self._age = Gauge(
            "waystation_queue_oldest_seconds",
            "Age of the oldest message",
            ["queue"],
            registry=self.registry,
        )
        self._restarts = Gauge(
            "waystation_job_restarts",
            "Restarts of background jobs",
            ["job"],
            registry=self.registry,
        )

        self._lag = Gauge(
            "waystation_feed_lag_seconds",
            "How long the oldest change that a watcher has yet to deal with has waited",
            ["watcher"],
            registry=self.registry,
        )
        self._lost = Gauge(
            "waystation_feed_lost",
            "Whether changes went unread for so long that they are gone",
            ["watcher"],
            registry=self.registry,
        )

    async def page(self, runtime: Runtime) -> bytes:
        """Everything; the queues as they were within the last ten seconds."""
        for state in runtime.supervisor.states():
            self._restarts.labels(state.name).set(state.restarts)
        for feed in runtime.feeds:
            self._lag.labels(feed.watcher.name).set(feed.lag)
            self._lost.labels(feed.watcher.name).set(feed.lost)
        async with self._looking:
            now = time.monotonic()
            if now >= self._look_again:
                self._look_again = now + _DEPTH_EVERY
                await asyncio.gather(*(self._measure(queue) for queue in runtime.queues))
        return generate_latest(self.registry)

    async def _measure(self, queue: Queue) -> None:
        name = queue.spec.name
        try:
            async with asyncio.timeout(_DEPTH_SECONDS):
                depth = await queue.depth()
        except (WaystationError, TimeoutError) as error:
            log.warning("the depth of %s is unknown: %s", name, error)
            return
        for state in ("ready", "delayed", "in_flight", "dead"):
            self._depth.labels(name, state).set(getattr(depth, state))
        self._age.labels(name).set(depth.oldest_age or 0)
