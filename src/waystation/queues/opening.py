"""Opening queues by their URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import InvalidRequest
from waystation.queues.embedded import EmbeddedQueues
from waystation.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.queues.base import Queues, QueueSpec
    from waystation.store import Store


async def open_queues(
    url: str, specs: Sequence[QueueSpec], store: Store, *, endpoint_url: str | None = None
) -> Queues:
    """Open `embedded` (in the file of a SQLite store) or `sqs://region`.

    Queues on SQS also need a store, with the table `parked`, for delays longer than SQS knows.
    """
    if url == "embedded":
        if not isinstance(store, SqliteStore):
            raise InvalidRequest(
                "embedded queues live in a SQLite file: with another store, use sqs://",
                field="queue",
            )
        queues = EmbeddedQueues(store, specs)
        await queues.ensure()
        return queues
    if url.startswith("sqs://"):
        # Imported here so that embedded queues start without the AWS client.
        from waystation.aws import AwsSession
        from waystation.queues.sqs import SqsQueues

        return SqsQueues(AwsSession(url.removeprefix("sqs://") or None, endpoint_url), specs, store)
    raise InvalidRequest(f"{url!r} is not a queue: embedded or sqs://region", field="queue")
