"""What the inbox brings to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.inbox.commands import add_commands
from waystation.inbox.tables import TABLES, inbox
from waystation.seam import Door, Parts, Running, System, Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router


def open_inbox(parts: Parts) -> Running:
    from waystation.inbox.component import component_door
    from waystation.inbox.service import Inbox

    inboxes = Inbox(parts)
    timed = inboxes.distribution.timed

    async def tend() -> None:
        await timed.tick()
        await timed.finish()

    return Running(
        routers=_routers,
        provide={"inboxes": inboxes},
        doors=[Door("/static", component_door())],
        cross_origin=["/v1/tenants/"],
        watchers=[Watcher("inbox", inbox, inboxes.watching.notice)],
        jobs={"inbox": timed.run},
        tend=tend,
        drain=timed.drain,
        close=inboxes.streams.close,
        metrics=inboxes.metrics.collectors(),
        offers={"inbox.publish": inboxes.publish_from_house},
    )


def _routers() -> Sequence[Router]:
    from waystation.inbox.api import router

    return [router]


SYSTEM = System(name="inbox", tables=TABLES, commands=add_commands, open=open_inbox)
