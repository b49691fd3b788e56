"""Accounts and API keys in Ferryhook's main table, and what is forgotten by itself in another.

The seed finds an email by an index, which two sign-ups at once can both find empty. Here an email
and a foreign identity are each claimed by a row of their own, written with the account.
"""

from __future__ import annotations

from typing import Literal

from waystation.seam import Permission, Role
from waystation.store import Index, Item, Table

Plan = Literal["free", "starter", "pro", "team", "unlimited"]

main = Table(
    "ferryhook-main",
    pk="PK",
    sk="SK",
    indexes=[
        Index("GSI1", pk="GSI1PK", sk="GSI1SK"),
        Index("GSI2", pk="GSI2PK", sk="GSI2SK"),
        Index("GSI3", pk="GSI3PK", sk="GSI3SK"),
    ],
)

sessions = Table("waystation-sessions", pk="pk", ttl="expires_at")


class User(
    Item,
    table=main,
    pk="USER#{user_id}",
    sk="PROFILE",
    indexes={"GSI1": ("EMAIL#{email}", "USER")},
    rename="camel",
    kw_only=True,
):
    """An account. `password_hash` is None for those who sign in elsewhere.

    `role` is `operator` where it belongs to the installation; whatever else is there makes it a
    tenant's.
    `billed_at` is the time of the latest subscription event that has set the plan.
    """

    user_id: str
    email: str
    name: str
    password_hash: str | None = None
    plan: Plan = "free"
    role: str | None = None
    stripe_customer_id: str | None = None
    stripe_sub_id: str | None = None
    github_id: str | None = None
    google_id: str | None = None
    usage_this_month: int = 0
    usage_period_start: str | None = None
    source_count: int = 0
    billed_at: int = 0
    created_at: str
    updated_at: str

    @property
    def known_role(self) -> Role:
        return "operator" if self.role == "operator" else "tenant"


class EmailClaim(Item, table=main, pk="EMAIL#{email}", sk="CLAIM", rename="camel", kw_only=True):
    """That an email belongs to an account."""

    email: str
    user_id: str


class Identity(
    Item,
    table=main,
    pk="IDENTITY#{provider}#{subject}",
    sk="CLAIM",
    rename="camel",
    kw_only=True,
):
    """Which account a user of another service has here."""

    provider: str
    subject: str
    user_id: str


class ApiKey(
    Item,
    table=main,
    pk="USER#{user_id}",
    sk="KEY#{key_id}",
    indexes={"GSI2": ("KEYHASH#{key_hash}", "KEY")},
    rename="camel",
    kw_only=True,
):
    """An API key, by the hash of its secret."""

    key_id: str
    user_id: str
    name: str
    key_hash: str
    key_prefix: str
    permissions: Permission
    last_used_at: str | None = None
    created_at: str


class Session(Item, table=sessions, pk="SESSION#{session_id}", kw_only=True):
    """A sign-in. `generation` counts the refresh tokens given out; only the latest is good."""

    session_id: str
    user_id: str
    generation: int = 0
    created_at: int
    expires_at: int


class KnownAddress(Item, table=sessions, pk="KNOWN#{user_id}#{address_hash}", kw_only=True):
    """That somebody has signed in to an account from an address."""

    user_id: str
    address_hash: str
    expires_at: int


class SignIn(Item, table=sessions, pk="SIGNIN#{state_hash}", kw_only=True):
    """A sign-in elsewhere that was begun: what its return must bring."""

    state_hash: str
    provider: str
    verifier: str
    cookie_hash: str
    expires_at: int


TABLES = [main, sessions]
