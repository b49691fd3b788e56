"""Metrics in Prometheus' format."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from waystation.errors import WaystationError

if TYPE_CHECKING:
    from waystation.queues import Queue, Queues
    from waystation.server.supervisor import Supervisor

log = logging.getLogger(__name__)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_DEPTH_SECONDS = 2.0
_DEPTH_EVERY = 10.0
"""Counting costs, and anybody may ask."""


class Metrics:
    """What is counted and measured, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._looking = asyncio.Lock()
        self._counted: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._look_again = 0.0
        self.requests = Counter(
            "waystation_http_requests",
            "Requests by route and status",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "waystation_http_request_seconds",
            "Time to answer",
            ["route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
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

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        told = (method, route, status)
        found = self._counted.get(told)
        if found is None:
            count = self.requests.labels(method, route, str(status))
            found = self._counted[told] = (count, self.seconds.labels(route))
        found[0].inc()
        found[1].observe(seconds)

    async def page(self, queues: Queues, supervisor: Supervisor) -> bytes:
        """Everything; the queues as they were within the last ten seconds."""
        for state in supervisor.states():
            self._restarts.labels(state.name).set(state.restarts)
        async with self._looking:
            now = time.monotonic()
            if now >= self._look_again:
                self._look_again = now + _DEPTH_EVERY
                await asyncio.gather(*(self._measure(queue) for queue in queues))
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
