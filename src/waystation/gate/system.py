"""What the gate brings to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.gate.commands import add_commands
from waystation.gate.settings import GateSettings
from waystation.gate.tables import TABLES
from waystation.seam import Check, Door, Parts, Running, System

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router


def open_gate(parts: Parts) -> Running:
    from waystation.gate.door import MAX_BODY, PREFIX, slack_door
    from waystation.gate.service import Gate

    gate = Gate(parts, parts.settings.of(GateSettings))
    return Running(
        routers=_routers,
        provide={"gate": gate},
        doors=[Door(PREFIX, slack_door(gate), MAX_BODY, programs=True)],
        close=gate.close,
        checks=[
            Check(
                "slack",
                gate.check_settings,
                "set WAYSTATION_SLACK_SIGNING_SECRET, and let the server reach "
                "WAYSTATION_SLACK_API_URL",
            )
        ],
        metrics=gate.metrics.collectors(),
    )


def _routers() -> Sequence[Router]:
    from waystation.gate.api import router

    return [router]


SYSTEM = System(
    name="gate", tables=TABLES, settings=GateSettings, commands=add_commands, open=open_gate
)
