"""Queues on SQS."""

from waystation.queues.sqs.engine import FIFO, SqsQueues, received

__all__ = ["FIFO", "SqsQueues", "received"]
