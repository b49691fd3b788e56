"""Durable queues: at least once, groups in strict order, on SQLite or on SQS."""

from waystation.errors import MessageLost, QueueError, QueueUnavailable, TryLater
from waystation.queues.base import (
    RETENTION_SECONDS,
    DeadLetter,
    Depth,
    Message,
    Queue,
    Queues,
    QueueSpec,
)
from waystation.queues.consumer import Consumer, Handler
from waystation.queues.opening import open_queues
from waystation.queues.parked import parked

__all__ = [
    "RETENTION_SECONDS",
    "Consumer",
    "DeadLetter",
    "Depth",
    "Handler",
    "Message",
    "MessageLost",
    "Queue",
    "QueueError",
    "QueueSpec",
    "QueueUnavailable",
    "Queues",
    "TryLater",
    "open_queues",
    "parked",
]
