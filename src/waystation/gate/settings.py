"""The settings of the gate."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.settings import Secret, SystemSettings, check_url


class GateSettings(SystemSettings, frozen=True, kw_only=True):
    slack_api_url: Annotated[str, Meta(description="where Slack's API is")] = (
        "https://slack.com/api/"
    )
    slack_signing_secret: Annotated[
        Secret | None, Meta(description="for workspaces without one of their own")
    ] = None

    def __post_init__(self) -> None:
        check_url("slack_api_url", self.slack_api_url)
