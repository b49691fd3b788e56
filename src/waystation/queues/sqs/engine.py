"""Queues on SQS: FIFO where they are ordered, standard where they are not.

A FIFO queue is asked for one message at a time, because a batch may hold several of one group:
whoever fails at the first would have to hand the others back, each a little nearer to the dead
letters for nothing.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.aws import AwsClient
from waystation.errors import AccessRefused, AwsError, MessageLost, QueueUnavailable
from waystation.ids import secret_hash
from waystation.queues.base import (
    MAX_RECEIVE,
    RETENTION_SECONDS,
    DeadLetter,
    Depth,
    Message,
    Queue,
    Queues,
    QueueSpec,
    check_names,
    check_release,
    check_visibility,
    message_id,
    undo_if_cancelled,
)
from waystation.queues.parked import Lot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.aws import AwsSession
    from waystation.queues.parked import Parked
    from waystation.store import Store

_MAX_DELAY = 900
_POLL_SECONDS = 10
"""Shorter than the client's timeout."""
_PEEK_SECONDS = 20
_ID = "waystation-id"
_GONE = frozenset(
    {
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
        "ReceiptHandleIsInvalid",
        "InvalidParameterValueException",
        "InvalidParameterValue",
    }
)
_MISSING = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})


class SqsQueue(Queue):
    """One queue and its dead letters."""

    def __init__(self, spec: QueueSpec, client: AwsClient, store: Store) -> None:
        super().__init__(spec)
        self._client = client
        self._clock = store.clock
        self._lot = Lot(store, spec.name)
        suffix = ".fifo" if spec.ordered else ""
        self._name = spec.scoped(store.env) + suffix
        self._dead_name = spec.scoped(store.env) + "-dead" + suffix
        self._urls: dict[str, str] = {}
        self._oldest: float | None = None

    async def _send(self, body: bytes, group: str | None, dedupe: str | None, delay: float) -> str:
        id_ = message_id(self._clock(), group, dedupe)
        if delay > (0 if self.spec.ordered else _MAX_DELAY):
            await self._lot.park(id_, body, group, dedupe, delay)
        else:
            await self._send_now(id_, body, group, dedupe or id_, math.ceil(delay))
        return id_

    async def _send_now(
        self, id_: str, body: bytes, group: str | None, dedupe: str, delay: int = 0
    ) -> None:
        request: dict[str, Any] = {
            "QueueUrl": await self._url(self._name),
            "MessageBody": _as_text(body),
            "MessageAttributes": {_ID: {"DataType": "String", "StringValue": id_}},
        }
        if self.spec.ordered:
            request["MessageGroupId"] = group or id_
            request["MessageDeduplicationId"] = dedupe
        elif delay:
            request["DelaySeconds"] = delay
        await self._call("SendMessage", request)

    async def send_due(self) -> int:
        """Send the parked messages whose time has come."""

        async def send(item: Parked) -> None:
            await self._send_now(item.id, item.body, item.group, f"{item.id}.{item.due}")

        return await self._lot.send_due(send)

    async def _receive(self, limit: int, wait: float, visibility: float) -> list[Message]:
        left = math.ceil(wait)
        while True:
            poll = min(left, _POLL_SECONDS)
            taking = self._take(self._name, limit, poll, math.ceil(visibility))
            found = await undo_if_cancelled(taking, self._put_back)
            left -= poll
            if found or left <= 0:
                now = self._clock()
                self._oldest = max((now - message.sent_at for message in found), default=None)
                return found

    async def _take(self, name: str, limit: int, wait: int, visibility: int) -> list[Message]:
        if not self.spec.ordered:
            return await self._ask(name, limit, wait, visibility)
        found = await self._ask(name, 1, wait, visibility)
        asked = 1
        while len(found) == asked < limit:  # twice as many each time, until some come back empty
            more = min(asked, limit - asked)
            asking = [self._ask(name, 1, 0, visibility) for _ in range(more)]
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                # Trouble comes again; what was received must not be forgotten for it.
                found += answer if isinstance(answer, list) else []
            asked += more
        return found

    async def _put_back(self, messages: list[Message]) -> None:
        for message in messages:
            await self.release(message)

    async def _ask(self, name: str, limit: int, wait: int, visibility: int) -> list[Message]:
        request = {
            "QueueUrl": await self._url(name),
            "MaxNumberOfMessages": limit,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": visibility,
            "MessageAttributeNames": [_ID],
            "MessageSystemAttributeNames": [
                "ApproximateReceiveCount",
                "SentTimestamp",
                "MessageGroupId",
            ],
        }
        answer = await self._call("ReceiveMessage", request)
        return [received(message) for message in answer.get("Messages") or []]

    async def ack(self, message: Message) -> None:
        with suppress(MessageLost):
            await self._on_receipt("DeleteMessage", self._name, message)

    async def extend(self, message: Message, seconds: float) -> None:
        check_visibility(seconds)
        await self._show_after(self._name, message, seconds)

    async def release(self, message: Message, delay: float = 0.0) -> None:
        check_release(delay)
        with suppress(MessageLost):
            await self._show_after(self._name, message, delay)

    async def _show_after(self, name: str, message: Message, seconds: float) -> None:
        await self._on_receipt(
            "ChangeMessageVisibility", name, message, VisibilityTimeout=math.ceil(seconds)
        )

    async def _on_receipt(self, operation: str, name: str, message: Message, **more: int) -> None:
        request = {"QueueUrl": await self._url(name), "ReceiptHandle": message.receipt, **more}
        try:
            await self._call(operation, request)
        except QueueUnavailable as error:
            if isinstance(error.__cause__, AwsError) and error.__cause__.code in _GONE:
                raise MessageLost(f"message {message.id} is no longer ours") from error
            raise

    async def depth(self) -> Depth:
        main, dead = await asyncio.gather(self._counts(self._name), self._counts(self._dead_name))
        return Depth(
            ready=main["ApproximateNumberOfMessages"],
            delayed=main["ApproximateNumberOfMessagesDelayed"] + await self._lot.count(),
            in_flight=main["ApproximateNumberOfMessagesNotVisible"],
            dead=sum(dead.values()),
            oldest_age=self._oldest,
        )

    async def _counts(self, name: str) -> dict[str, int]:
        names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesDelayed",
            "ApproximateNumberOfMessagesNotVisible",
        ]
        request = {"QueueUrl": await self._url(name), "AttributeNames": names}
        answer = await self._call("GetQueueAttributes", request)
        return {each: int(answer["Attributes"].get(each, 0)) for each in names}

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        found = await self._take_dead(limit)
        for message in found:
            with suppress(MessageLost):
                await self._show_after(self._dead_name, message, 0)
        return [
            DeadLetter(
                id=message.id,
                body=message.body,
                group=message.group,
                receives=message.receives,
                sent_at=message.sent_at,
            )
            for message in found
        ]

    async def redrive(self, limit: int = 1000) -> int:
        """Sends before it deletes: after a crash in between a letter is sent twice."""
        revived = 0
        while revived < limit and (found := await self._take_dead(min(limit - revived, 100))):
            for message in found:
                # Not the first sending's dedupe id, but the same one if this is cut short.
                again = secret_hash(f"{message.id} {message.sent_at}")
                await self._send_now(message.id, message.body, message.group, again)
                with suppress(MessageLost):
                    await self._on_receipt("DeleteMessage", self._dead_name, message)
            revived += len(found)
        return revived

    async def _take_dead(self, limit: int) -> list[Message]:
        """Some dead letters, hidden from others for a little while."""
        found: list[Message] = []
        while len(found) < limit:
            some = min(MAX_RECEIVE, limit - len(found))
            more = await self._ask(self._dead_name, some, 0, _PEEK_SECONDS)
            if not more:
                break
            found += more
        return found

    async def ensure(self) -> None:
        """Create the queue and its dead letters, if they are not there."""
        dead_url = await self._create(self._dead_name, {})
        request = {"QueueUrl": dead_url, "AttributeNames": ["QueueArn"]}
        answer = await self._call("GetQueueAttributes", request)
        policy = {
            "deadLetterTargetArn": answer["Attributes"]["QueueArn"],
            "maxReceiveCount": self.spec.max_receives,
        }
        await self._create(
            self._name,
            {
                "VisibilityTimeout": str(self.spec.visibility),
                "RedrivePolicy": msgspec.json.encode(policy).decode(),
            },
        )

    async def _create(self, name: str, attributes: dict[str, str]) -> str:
        wanted = {**attributes, "MessageRetentionPeriod": str(RETENTION_SECONDS)}
        if self.spec.ordered:
            wanted |= FIFO
        answer = await self._call("CreateQueue", {"QueueName": name, "Attributes": wanted})
        return str(answer["QueueUrl"])

    async def _url(self, name: str) -> str:
        if name not in self._urls:
            answer = await self._call("GetQueueUrl", {"QueueName": name})
            self._urls[name] = str(answer["QueueUrl"])
        return self._urls[name]

    async def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.call(operation, request)
        except AwsError as error:
            if error.code in _MISSING:
                raise QueueUnavailable(f"no queue {self._name}: deploy the template") from error
            raise QueueUnavailable(f"SQS: {error}") from error
        except AccessRefused as error:
            raise QueueUnavailable(f"SQS: {error}") from error
        return msgspec.json.decode(answer, type=dict[str, Any]) if answer else {}


FIFO = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
"""Dedupe ids per group, which is what lets SQS go faster than 300 messages a second."""


class SqsQueues(Queues):
    """The queues of one region."""

    def __init__(self, session: AwsSession, specs: Sequence[QueueSpec], store: Store) -> None:
        check_names(specs)
        client = AwsClient(
            session, service="sqs", signing_name="sqs", target="AmazonSQS", version="1.0"
        )
        self._session = session
        self._all = [SqsQueue(spec, client, store) for spec in specs]
        super().__init__({queue.spec.name: queue for queue in self._all})

    async def ensure(self) -> None:
        for queue in self._all:
            await queue.ensure()

    async def tend(self) -> int:
        """Send the parked messages that are due."""
        return sum(await asyncio.gather(*(queue.send_due() for queue in self._all)))

    async def close(self) -> None:
        await self._session.close()


def _as_text(body: bytes) -> str:
    """JSON with the two characters escaped that JSON may hold and SQS may not."""
    return body.decode().replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def received(message: dict[str, Any]) -> Message:
    """A message as SQS gives it."""
    attributes = message.get("Attributes") or {}
    id_ = (message.get("MessageAttributes") or {}).get(_ID, {}).get("StringValue")
    group = attributes.get("MessageGroupId")
    return Message(
        id=id_ or message["MessageId"],
        body=message["Body"].encode(),
        group=None if group == id_ else group,
        receives=int(attributes.get("ApproximateReceiveCount", 1)),
        sent_at=int(attributes.get("SentTimestamp", 0)) / 1000,
        receipt=message["ReceiptHandle"],
    )
