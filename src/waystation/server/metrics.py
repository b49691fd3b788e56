"""Metrics in Prometheus' format."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from waystation.errors import WaystationError

if TYPE_CHECKING:
    from waystation.queues import Queues
    from waystation.server.supervisor import Supervisor

log = logging.getLogger(__name__)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_DEPTH_SECONDS = 2.0


class Metrics:
    """What is counted and measured, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    async def page(self, queues: Queues, supervisor: Supervisor) -> bytes:
        """Everything, with the queues as they are now."""
        for state in supervisor.states():
            self._restarts.labels(state.name).set(state.restarts)
        for queue in queues:
            name = queue.spec.name
            try:
                async with asyncio.timeout(_DEPTH_SECONDS):
                    depth = await queue.depth()
            except (WaystationError, TimeoutError) as error:
                log.warning("the depth of %s is unknown: %s", name, error)
                continue
            for state_name in ("ready", "delayed", "in_flight", "dead"):
                self._depth.labels(name, state_name).set(getattr(depth, state_name))
            self._age.labels(name).set(depth.oldest_age or 0)
        return generate_latest(self.registry)
