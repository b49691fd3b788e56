"""The settings of accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from waystation.accounts.tables import Plan
from waystation.errors import SettingsError
from waystation.settings import Secret, SystemSettings

if TYPE_CHECKING:
    from waystation.settings import Settings


class AccountSettings(SystemSettings, frozen=True, kw_only=True):
    signups: Annotated[bool, Meta(description="whether anybody may open an account")] = True
    signup_plan: Annotated[Plan, Meta(description="the plan of those who sign up")] = "free"
    github_client_id: Annotated[str | None, Meta(description="turns on sign-in with GitHub")] = None
    github_client_secret: Annotated[
        Secret | None, Meta(description="the secret of that client")
    ] = None
    google_client_id: Annotated[str | None, Meta(description="turns on sign-in with Google")] = None
    google_client_secret: Annotated[
        Secret | None, Meta(description="the secret of that client")
    ] = None

    def check(self, shared: Settings) -> None:
        for provider in ("github", "google"):
            id_, secret = f"{provider}_client_id", f"{provider}_client_secret"
            if (getattr(self, id_) is None) != (getattr(self, secret) is None):
                raise SettingsError(f"{id_} and {secret} must be set together")
            if getattr(self, id_) is not None and shared.public_url is None:
                raise SettingsError(f"public_url: must be set for sign-in with {provider}")
