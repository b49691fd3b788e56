"""Events on their way into an inbox: where to, to whom, and what of the event is the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInput, Refusal, TooManyRequests, WaystationError
from waystation.outbound import Reply
from waystation.relay.rules.budget import Budget, RulesTooCostly
from waystation.relay.rules.paths import parse, parse_input

if TYPE_CHECKING:
    from waystation.relay.rules.paths import Webhook
    from waystation.seam import Offer

_MOST_USERS = 10_000
_STEPS, _SECONDS = 50_000, 0.05
_FIELDS = ("sender", "category", "type", "ttl")

Name = Annotated[str, Meta(min_length=1, max_length=128)]


class InboxAudience(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`uids` are the same users each time; `path` is where the event names them."""

    kind: Literal["users", "everyone"]
    uids: Annotated[list[Name], Meta(min_length=1, max_length=1_000)] | None = None
    path: str | None = None


class InboxTarget(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An inbox that a connection leads to. `tenant` and `inbox` are names, or paths that begin with
    `$.` or `body.` to where the event has them. What the event's body does not say of `sender`,
    `category`, `type` and `ttl` is taken from here."""

    tenant: Name
    inbox: Name
    audience: InboxAudience
    sender: Annotated[str, Meta(min_length=1, max_length=200)] = "relay"
    category: Name | None = None
    type: Name | None = None
    ttl: Annotated[str, Meta(max_length=20)] | None = None


class _NoMessage(Exception):
    """The event does not have what a message needs."""


def check_target(given: InboxTarget) -> None:
    audience = given.audience
    if audience.kind == "everyone":
        if audience.uids is not None or audience.path is not None:
            raise InvalidInput("inbox.audience", "everyone has neither uids nor a path")
    elif (audience.uids is None) == (audience.path is None):
        raise InvalidInput("inbox.audience", "users are named by either uids or a path")
    if audience.path is not None:
        parse_input(audience.path, "inbox.audience.path")
    for field in ("tenant", "inbox"):
        if _is_path(getattr(given, field)):
            parse_input(getattr(given, field), f"inbox.{field}")


class Inboxes:
    """`publish` is what the inbox offers."""

    def __init__(self, publish: Offer) -> None:
        self._publish = publish

    async def send(
        self, account: str, stored: str, webhook: Webhook, body: bytes, delivery_id: str
    ) -> Reply:
        """Publish an event's body, after its transform, once for each delivery."""
        try:
            target = msgspec.json.decode(stored, type=InboxTarget)
            message = _message(target, webhook, body) | {"host_system_id": f"relay:{delivery_id}"}
            tenant = _named(target.tenant, webhook)
            id_ = await self._publish(account, tenant, _named(target.inbox, webhook), message)
        except (msgspec.MsgspecError, _NoMessage, RulesTooCostly) as error:
            return Reply(422, error=f"the event makes no message: {error}"[:300])
        except InvalidInput as error:
            return Reply(422, error=f"{error.field}: {error}"[:300])
        except TooManyRequests as error:
            return Reply(429, error=str(error), headers={"retry-after": str(error.retry_after)})
        except Refusal as error:
            return Reply(404, error=str(error)[:300])
        except WaystationError as error:
            return Reply(503, error=f"the inbox cannot take it now: {type(error).__name__}")
        return Reply(201, body=msgspec.json.encode({"id": id_}))


def _message(target: InboxTarget, webhook: Webhook, body: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not isinstance(given.get("title"), str):
        raise _NoMessage("its body, after the transform, is not an object with a title")
    content = {name: given[name] for name in ("title", "body", "cta_uri") if name in given}
    found = {name: given.get(name) or getattr(target, name) for name in _FIELDS}
    return {"audience": _audience(target.audience, webhook), "message": content, **found}


def _audience(given: InboxAudience, webhook: Webhook) -> dict[str, Any]:
    if given.kind == "everyone":
        return {"kind": "everyone"}
    uids = given.uids if given.path is None else _at(given.path, webhook)
    return {"kind": "users", "uids": uids}


def _named(text: str, webhook: Webhook) -> str:
    if not _is_path(text):
        return text
    found = _at(text, webhook)
    if len(found) != 1:
        raise _NoMessage(f"there is not one name at {text}")
    return found[0]


def _is_path(text: str) -> bool:
    return text.startswith(("$.", "$[", "body.", "headers.", "query."))


def _at(path: str, webhook: Webhook) -> list[str]:
    """The names at a path: one, or a list of them."""
    found: list[str] = []
    for value in webhook.find(parse(path), Budget(_STEPS, _SECONDS)):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int) and not isinstance(each, bool):
                each = str(each)
            if not isinstance(each, str) or not each:
                raise _NoMessage(f"what is at {path} does not name users")
            found.append(each)
            if len(found) > _MOST_USERS:
                raise _NoMessage(f"there are more than {_MOST_USERS} users at {path}")
    if not found:
        raise _NoMessage(f"there is nothing at {path}")
    return list(dict.fromkeys(found))
