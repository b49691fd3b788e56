"""Opening a store by its URL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from waystation.errors import InvalidRequest
from waystation.store.sqlite.engine import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.clock import Clock
    from waystation.store.base import Store
    from waystation.store.tables import Table


async def open_store(
    url: str,
    tables: Sequence[Table],
    *,
    env: str = "dev",
    clock: Clock = time.time,
    endpoint_url: str | None = None,
) -> Store:
    """Open `sqlite:///path`, `sqlite://:memory:` or `dynamodb://region`.

    `sqlite:///waystation.db` is relative to the working directory and `sqlite:////var/lib/w.db`
    is absolute. The tables of an embedded store are created by opening it; those of DynamoDB by
    `ensure_tables` or by the deployment template.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = None if parts.netloc == ":memory:" else _path(url, unquote(parts.path))
        return SqliteStore(path, tables, env=env, clock=clock)
    if parts.scheme == "dynamodb":
        # Imported here so that an embedded store starts without the AWS client.
        from waystation.store.dynamodb.engine import DynamoStore

        return await DynamoStore.connect(
            parts.netloc, tables, env=env, clock=clock, endpoint_url=endpoint_url
        )
    raise InvalidRequest(f"{url!r} is not a store: sqlite:///path or dynamodb://region", field="url")


def _path(url: str, path: str) -> Path:
    if len(path) < 2:
        raise InvalidRequest(f"{url!r} names no file: sqlite:///waystation.db", field="url")
    return Path(path[1:])
