"""Opening a store by its URL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from waystation.errors import InvalidRequest
from waystation.store.sqlite.engine import SqliteStore

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

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
    names: Mapping[str, str] | None = None,
    meeting: socket.socket | None = None,
) -> Store:
    """Open `sqlite:///path`, `sqlite://:memory:` or `dynamodb://region`.

    `sqlite:///waystation.db` is relative to the working directory and `sqlite:////var/lib/w.db`
    is absolute. The tables of an embedded store are created by opening it; those of DynamoDB by
    `ensure_tables` or by the deployment template. `names` has the whole names of tables that are
    called otherwise than an environment's are, by their declared names. `meeting` is where a
    process is met that writes for several into their embedded store.
    """
    if url == "sqlite://:memory:":
        return SqliteStore(None, tables, env=env, clock=clock, names=names)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        path = Path(unquote(url.removeprefix("sqlite:///")))
        store = SqliteStore(path, tables, env=env, clock=clock, names=names)
        if meeting is not None:
            store.share(meeting)
        return store
    if url.startswith("dynamodb://"):
        # Imported here so that an embedded store starts without the AWS client.
        from waystation.store.dynamodb.engine import DynamoStore

        return await DynamoStore.connect(
            url.removeprefix("dynamodb://"),
            tables,
            env=env,
            clock=clock,
            endpoint_url=endpoint_url,
            names=names,
        )
    raise InvalidRequest(
        f"{url!r} is not a store: sqlite:///path or dynamodb://region", field="url"
    )
