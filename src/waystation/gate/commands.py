"""`waystation gate check`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from waystation.seam import Call, Commands


def add_commands(commands: Commands) -> None:
    gate = commands.group("gate", "the Slack defence")
    check = gate.add("check", _check, help="ask Slack with a workspace's own bot token", calls=True)
    check.add_argument("--team", required=True, metavar="T…", help="the workspace")
    check.add_argument("--user", metavar="U…", help="a user who should exist")
    check.add_argument("--channel", metavar="C…", help="a channel that should exist")


async def _check(call: Call) -> int:
    options = call.options
    asked = {"user_id": options.user, "channel_id": options.channel}
    async with call.client() as api:
        result = await api.call(
            "POST", f"/v1/gate/workspaces/{quote(options.team, safe='')}/check", asked
        )
    lines = ["passed" if result["passed"] else f"refused: {result['reason']}"]
    if result["detail"]:
        lines.append(result["detail"])
    if result["missing_scopes"]:
        lines.append("missing scopes: " + ", ".join(result["missing_scopes"]))
    call.show(result, "\n".join(lines))
    return 0 if result["passed"] else 1
