"""Who is calling, and what they may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from waystation.errors import Forbidden

Permission = Literal["read", "write", "admin"]
Role = Literal["operator", "tenant"]

_RANKS: dict[Permission, int] = {"read": 1, "write": 2, "admin": 3}


class Principal(msgspec.Struct, frozen=True):
    """Who is calling, and what they may do."""

    user_id: str
    permissions: Permission
    how: Literal["key", "session"]

    def require(self, needed: Permission) -> None:
        if _RANKS[self.permissions] < _RANKS[needed]:
            raise Forbidden(f"this needs the permission {needed}; the key has {self.permissions}")


class Callers(msgspec.Struct, frozen=True):
    """How callers are known. Below `sign_in` are the routes of those who have yet to say who they
    are."""

    authenticate: Callable[[str | None], Awaitable[Principal]]
    role: Callable[[str], Awaitable[Role]]
    sign_in: str


OPERATORS = {"operators": True}
"""A route's `opt`: it belongs to the installation. To everybody but operators it is 404."""

PUBLIC = {"public": True}
"""A route's `opt`: it needs no authentication."""


USERS = {"users": True}
"""A route's `opt`: it finds out itself who calls, since others than accounts may."""


def needs(permission: Permission) -> dict[str, Permission]:
    """A route's `opt`: the permission that it takes, where its method does not say."""
    return {"needs": permission}
