"""The settings of the desk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import SettingsError
from waystation.settings import Secret, SystemSettings, check_url

if TYPE_CHECKING:
    from waystation.settings import Settings

Days = Annotated[int, Meta(ge=1, le=3650)]


class DeskSettings(SystemSettings, frozen=True, kw_only=True):
    desk_webhook_tokens: Annotated[
        list[Secret],
        Meta(description="tokens that support events may carry; several while they are rotated"),
    ] = msgspec.field(default_factory=list)
    desk_hmac_secret: Annotated[
        Secret | None, Meta(description="the secret that support events are signed with")
    ] = None
    richpanel_url: Annotated[
        str | None,
        Meta(description="where Richpanel's API is, such as `https://api.richpanel.com/v1`"),
    ] = None
    richpanel_api_key: Annotated[Secret | None, Meta(description="the key for Richpanel's API")] = (
        None
    )
    desk_outbound: Annotated[
        bool, Meta(description="whether the desk may act, rather than record what it would do")
    ] = False
    desk_recipients: Annotated[
        list[str] | None,
        Meta(
            description="e-mail addresses of customers whose conversations the desk may act on; "
            "for all others it records what it would do. By default everybody's"
        ),
    ] = None
    desk_rules: Annotated[
        str | None, Meta(description="a TOML file of rules, instead of those that come with it")
    ] = None
    desk_decider: Annotated[
        str | None,
        Meta(description="`module:function` that decides instead of the rules; it is async"),
    ] = None
    desk_decider_seconds: Annotated[
        float, Meta(gt=0, le=60, description="how long the decider, or an order lookup, may take")
    ] = 5.0
    desk_orders: Annotated[
        str | None, Meta(description="`module:function` that looks up an order; it is async")
    ] = None
    desk_excerpts: Annotated[
        bool,
        Meta(description="whether dead letters show the first 80 characters, redacted"),
    ] = False
    desk_archive_days: Annotated[
        int,
        Meta(
            ge=0,
            le=3650,
            description="how long events are archived, encrypted, at most as long as they are "
            "remembered; 0 is never",
        ),
    ] = 0
    desk_event_days: Annotated[Days, Meta(description="how long an event is remembered")] = 30
    desk_state_days: Annotated[
        Days, Meta(description="how long the state of a conversation is kept after its last event")
    ] = 90
    desk_audit_days: Annotated[Days, Meta(description="how long audit rows are kept")] = 60
    desk_flow_days: Annotated[
        int, Meta(ge=1, le=30, description="how long the desk waits for an answer to its question")
    ] = 7

    def __post_init__(self) -> None:
        check_url("richpanel_url", self.richpanel_url)
        for name in ("desk_decider", "desk_orders"):
            path = getattr(self, name)
            if path is not None and not all(path.partition(":")[::2]):
                raise SettingsError(f"{name}: must be module:function")

    def check(self, shared: Settings) -> None:
        if self.desk_outbound and not (self.richpanel_url and self.richpanel_api_key):
            raise SettingsError("desk_outbound: needs richpanel_url and richpanel_api_key")
        if self.desk_archive_days > self.desk_event_days:
            raise SettingsError("desk_archive_days: must not be more than desk_event_days")
