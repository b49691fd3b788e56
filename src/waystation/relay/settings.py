"""The settings of the relay."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.accounts import Plan
from waystation.errors import SettingsError
from waystation.settings import Secret, SystemSettings


class RelaySettings(SystemSettings, frozen=True, kw_only=True):
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
