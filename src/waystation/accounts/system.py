"""What accounts bring to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.accounts.commands import add_commands
from waystation.accounts.settings import AccountSettings
from waystation.accounts.tables import TABLES
from waystation.seam import Callers, Parts, Running, System

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router

    from waystation.accounts.oauth import Provider
    from waystation.accounts.passwords import Passwords


def open_accounts(
    parts: Parts,
    *,
    passwords: Passwords | None = None,
    providers: dict[str, Provider] | None = None,
) -> Running:
    """`providers` replaces those that the settings turn on."""
    # Imported here, as in every system, so that small commands start without all of it.
    from waystation.accounts.billing import Billing
    from waystation.accounts.oauth import SignInElsewhere, configured
    from waystation.accounts.service import Accounts

    settings = parts.settings.of(AccountSettings)
    accounts = Accounts(
        parts.store,
        parts.vault,
        passwords=passwords,
        signups=settings.signups,
        signup_plan=settings.signup_plan,
    )
    elsewhere = SignInElsewhere(
        parts.store,
        accounts,
        parts.outbound,
        configured(settings) if providers is None else providers,
        public_url=parts.settings.public_url or "",
        signup_plan=settings.signup_plan,
        signups=settings.signups,
    )
    return Running(
        routers=_routers,
        provide={"accounts": accounts, "elsewhere": elsewhere},
        offers={
            "accounts.role": accounts.role,
            "accounts.authenticate": accounts.authenticate,
            "accounts.billed": Billing(parts.store, settings.prices).apply,
        },
        callers=Callers(accounts.authenticate, accounts.role, sign_in="/v1/auth/"),
        close=accounts.close,
    )


def _routers() -> Sequence[Router]:
    from waystation.accounts import api, oauth_api

    return [api.router, oauth_api.router]


SYSTEM = System(
    name="accounts",
    tables=TABLES,
    settings=AccountSettings,
    commands=add_commands,
    open=open_accounts,
)
