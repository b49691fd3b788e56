"""Routes of accounts and API keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, Request, Router, delete, get, post
from litestar.datastructures import Address, State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from waystation.accounts.plans import PLANS, Limits
from waystation.accounts.service import Accounts
from waystation.accounts.tables import ApiKey, Plan
from waystation.accounts.tokens import Tokens  # noqa: TC001
from waystation.errors import NotFound
from waystation.ids import is_id
from waystation.patterns import MAX_CURSOR, Cursors, Listing, listing, sender_key
from waystation.seam import PUBLIC, Permission, Principal, Role, needs

Service = NamedDependency[Accounts]
AnyRequest = Request[Principal, None, State]
Name = Annotated[str, Meta(min_length=1, max_length=100)]


Email = Annotated[str, Meta(max_length=254, extra_json_schema={"format": "email"})]


class SignUp(msgspec.Struct, forbid_unknown_fields=True):
    email: Email
    password: Annotated[str, Meta(description="8 characters to 72 bytes")]
    name: Name


class LogIn(msgspec.Struct, forbid_unknown_fields=True):
    email: Email
    password: Annotated[str, Meta(max_length=1000)]


class Refresh(msgspec.Struct, forbid_unknown_fields=True):
    refresh_token: Annotated[str, Meta(max_length=500)]


class Me(msgspec.Struct, kw_only=True):
    id: str
    email: str
    name: str
    plan: Plan
    role: Annotated[Role, Meta(description="operator: created on the command line")]
    limits: Limits
    created_at: str


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    name: Name = "API key"
    permissions: Permission = "write"


class Key(msgspec.Struct, kw_only=True):
    """A key as it is listed: its secret is not known to anybody."""

    id: str
    name: str
    prefix: Annotated[str, Meta(description="the eight characters after ws_live_")]
    permissions: Permission
    last_used_at: str | None
    created_at: str


class CreatedKey(Key, kw_only=True):
    key: Annotated[str, Meta(description="the key itself, shown this once")]


class AuthController(Controller):
    """Opening an account and signing in."""

    path = "/v1/auth"
    tags = ("Accounts",)
    opt = PUBLIC

    @post("/signup", summary="Open an account")
    async def sign_up(
        self, data: JSONBody[SignUp], request: AnyRequest, accounts: Service
    ) -> Tokens:
        return await accounts.sign_up(
            data.email, data.password, data.name, address_of(request.client)
        )

    @post("/login", status_code=200, summary="Sign in")
    async def log_in(self, data: JSONBody[LogIn], request: AnyRequest, accounts: Service) -> Tokens:
        return await accounts.log_in(data.email, data.password, address_of(request.client))

    @post("/refresh", status_code=200, summary="New tokens for a refresh token, once")
    async def refresh(self, data: JSONBody[Refresh], accounts: Service) -> Tokens:
        return await accounts.sessions.renew(data.refresh_token)

    @post("/logout", status_code=204, summary="End a session and all its tokens")
    async def log_out(self, data: JSONBody[Refresh], accounts: Service) -> None:
        await accounts.sessions.end(data.refresh_token)


class AccountController(Controller):
    """The caller's own account."""

    path = "/v1"
    tags = ("Accounts",)

    @get("/me", summary="The caller's own account")
    async def me(self, request: AnyRequest, accounts: Service) -> Me:
        user = await accounts.get(request.user.user_id)
        return Me(
            id=user.user_id,
            email=user.email,
            name=user.name,
            plan=user.plan,
            role=user.known_role,
            limits=PLANS[user.plan],
            created_at=user.created_at,
        )

    @post("/api-keys", opt=needs("admin"), summary="Create an API key")
    async def create_key(
        self, data: JSONBody[NewKey], request: AnyRequest, accounts: Service
    ) -> CreatedKey:
        key, secret = await accounts.keys.create(request.user.user_id, data.name, data.permissions)
        return CreatedKey(**msgspec.structs.asdict(_key_view(key)), key=secret)

    @get("/api-keys", opt=needs("admin"), summary="All API keys")
    async def list_keys(
        self,
        request: AnyRequest,
        accounts: Service,
        cursors: NamedDependency[Cursors],
        limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50,
        cursor: Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)] = None,
    ) -> Listing[Key]:
        user_id = request.user.user_id
        found, more = cursors.cut(
            await accounts.keys.of(user_id),
            limit,
            cursor,
            f"keys {user_id}",
            lambda key: f"{key.created_at} {key.key_id}",
        )
        return listing([_key_view(key) for key in found], more)

    @delete("/api-keys/{key_id:str}", opt=needs("admin"), summary="Revoke an API key")
    async def revoke_key(
        self, key_id: FromPath[str], request: AnyRequest, accounts: Service
    ) -> None:
        if not is_id(key_id):
            raise NotFound("there is no such key")
        await accounts.keys.revoke(request.user.user_id, key_id)


router = Router(path="/", route_handlers=[AuthController, AccountController])


def _key_view(key: ApiKey) -> Key:
    return Key(
        id=key.key_id,
        name=key.name,
        prefix=key.key_prefix,
        permissions=key.permissions,
        last_used_at=key.last_used_at,
        created_at=key.created_at,
    )


def address_of(client: Address | None) -> str:
    return sender_key(client.host if client else None)
