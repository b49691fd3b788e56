"""The settings of the desk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.settings import Secret, SystemSettings, check_url


class DeskSettings(SystemSettings, frozen=True, kw_only=True):
    desk_webhook_tokens: Annotated[
        list[Secret], Meta(description="tokens that support events may carry")
    ] = msgspec.field(default_factory=list)
    desk_hmac_secret: Annotated[
        Secret | None, Meta(description="the secret that support events are signed with")
    ] = None
    richpanel_url: Annotated[str | None, Meta(description="where Richpanel's API is")] = None
    richpanel_api_key: Annotated[Secret | None, Meta(description="the key for Richpanel's API")] = (
        None
    )
    desk_outbound: Annotated[
        bool, Meta(description="whether the desk may act, rather than record what it would do")
    ] = False

    def __post_init__(self) -> None:
        check_url("richpanel_url", self.richpanel_url)
