"""What the desk brings to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.desk.commands import add_commands
from waystation.desk.settings import DeskSettings
from waystation.desk.tables import EVENTS, TABLES
from waystation.seam import Check, Door, Parts, Running, System, every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router

_REDRIVE_SECONDS = 1.0
_SWEEP_SECONDS = 3_600.0


def open_desk(parts: Parts) -> Running:
    from waystation.desk.receiving.door import MAX_BODY, PREFIX, desk_door
    from waystation.desk.service import Desk
    from waystation.queues import Consumer

    desk = Desk(parts, parts.settings.of(DeskSettings))
    return Running(
        routers=_routers,
        provide={"desk": desk},
        doors=[Door(PREFIX, desk_door(desk.intake), MAX_BODY, programs=True)],
        consumers=[Consumer(desk.queue, desk.worker.handle, concurrency=64)],
        jobs={
            "desk-redrive": every(_REDRIVE_SECONDS, desk.letters.tick),
            "desk-archive": every(_SWEEP_SECONDS, desk.archive.sweep),
        },
        tend=desk.tend,
        checks=[
            Check(
                "desk",
                desk.check_senders,
                "set WAYSTATION_DESK_HMAC_SECRET or WAYSTATION_DESK_WEBHOOK_TOKENS",
            ),
            Check(
                "richpanel",
                desk.check_vendor,
                "set WAYSTATION_RICHPANEL_URL and WAYSTATION_RICHPANEL_API_KEY",
            ),
        ],
        metrics=desk.metrics.collectors(),
    )


def _routers() -> Sequence[Router]:
    from waystation.desk.api import router

    return [router]


SYSTEM = System(
    name="desk",
    tables=TABLES,
    queues=[EVENTS],
    settings=DeskSettings,
    commands=add_commands,
    open=open_desk,
)
