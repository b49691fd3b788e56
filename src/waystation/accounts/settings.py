"""The settings of accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
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
    stripe_webhook_secrets: Annotated[
        list[Secret],
        Meta(description="secrets of Stripe's webhook `/in/billing`, which sets accounts' plans"),
    ] = msgspec.field(default_factory=list)
    stripe_prices: Annotated[
        list[str], Meta(description="which plan a Stripe price buys: `price_123=pro`")
    ] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if bool(self.stripe_webhook_secrets) != bool(self.prices):
            raise SettingsError("stripe_webhook_secrets and stripe_prices must be set together")

    @property
    def prices(self) -> dict[str, Plan]:
        """Which plan each Stripe price buys."""
        found: dict[str, Plan] = {}
        for pair in self.stripe_prices:
            price, _, plan = pair.partition("=")
            try:
                found[price.strip()] = msgspec.convert(plan.strip(), Plan)
            except msgspec.ValidationError:
                raise SettingsError(f"stripe_prices: {pair!r} must be like price_123=pro") from None
        return found

    def check(self, shared: Settings) -> None:
        for provider in ("github", "google"):
            id_, secret = f"{provider}_client_id", f"{provider}_client_secret"
            if (getattr(self, id_) is None) != (getattr(self, secret) is None):
                raise SettingsError(f"{id_} and {secret} must be set together")
            if getattr(self, id_) is not None and shared.public_url is None:
                raise SettingsError(f"public_url: must be set for sign-in with {provider}")
