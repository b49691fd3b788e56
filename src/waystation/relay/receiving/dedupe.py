"""Whether a source has sent this before: by the provider's own delivery id, or by chosen fields."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInput
from waystation.relay.receiving.signatures import mailgun_signature
from waystation.relay.rules.budget import Budget, RulesTooCostly
from waystation.relay.rules.paths import UNREADABLE, Webhook, parse, parse_input

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_WINDOW = 3 * 86_400
"""As long as the most patient provider tries again."""

MAX_WINDOW = 30 * 86_400
SIGNATURE_SECONDS = {"mailgun": 12 * 3600, "paypal": DEFAULT_WINDOW}
"""For how long a signature that fits several bodies is good."""

_MAX_FIELDS = 10
_MAX_ID = 500
_STEPS = 20_000
_SECONDS = 0.05


class Dedupe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes two webhooks the same. No fields means the provider's delivery id."""

    mode: Literal["default", "fields", "none"] = "default"
    fields: Annotated[list[str], Meta(description="paths such as headers.x-id and body.id")] = []
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW, description="seconds")] = DEFAULT_WINDOW


def check_dedupe(dedupe: Dedupe, provider: str) -> None:
    needed = SIGNATURE_SECONDS.get(provider)
    if needed is not None and (dedupe.mode != "default" or dedupe.window < needed):
        raise InvalidInput(
            "dedupe",
            f"must be default with a window of at least {needed}: {provider}'s signatures do not "
            "cover the body, so that each may be used once only",
        )
    if (dedupe.mode == "fields") != bool(dedupe.fields):
        raise InvalidInput(
            "dedupe.fields",
            "the mode fields needs at least one path, and the other modes take none",
        )
    if len(dedupe.fields) > _MAX_FIELDS:
        raise InvalidInput("dedupe.fields", f"at most {_MAX_FIELDS} paths are allowed")
    for n, field in enumerate(dedupe.fields):
        parse_input(field, f"dedupe.fields[{n}]")


def digest_of(dedupe: Dedupe, provider: str, webhook: Webhook) -> str | None:
    """What this webhook is known by, or None when every one is new."""
    if dedupe.mode == "none":
        return None
    if dedupe.mode == "fields":
        budget = Budget(_STEPS, _SECONDS)
        try:
            values = [webhook.find(parse(field), budget) for field in dedupe.fields]
        except RulesTooCostly:  # then the same means the very same
            return sha256(b"body " + webhook.content).hexdigest()[:40]
        if not any(values):
            return None  # not one of the fields is there
        return sha256(msgspec.json.encode(["fields", dedupe.fields, values])).hexdigest()[:40]
    found = _IDS[provider](webhook) if provider in _IDS else None
    if not found or len(found) > _MAX_ID:
        return None
    return sha256(f"{provider} {found}".encode("utf-8", "replace")).hexdigest()[:40]


class _Ids(msgspec.Struct):
    id: str | None = None
    event_id: str | None = None


def _from_body(name: str) -> Callable[[Webhook], str | None]:
    def read(webhook: Webhook) -> str | None:
        try:
            found: str | None = getattr(msgspec.json.decode(webhook.content, type=_Ids), name)
        except UNREADABLE:
            return None
        return found

    return read


def _from_header(*names: str) -> Callable[[Webhook], str | None]:
    return lambda webhook: next((v for n in names if (v := webhook.headers.get(n))), None)


def _mailgun_token(webhook: Webhook) -> str | None:
    found = mailgun_signature(webhook.content)
    return None if found is None else found.token


_IDS: dict[str, Callable[[Webhook], str | None]] = {
    "stripe": _from_body("id"),
    "github": _from_header("x-github-delivery"),
    "shopify": _from_header("x-shopify-webhook-id"),
    "slack": _from_body("event_id"),
    "twilio": _from_header("i-twilio-idempotency-token"),
    "square": _from_body("event_id"),
    "paddle": _from_body("event_id"),
    "linear": _from_header("linear-delivery"),
    "zendesk": _from_header("x-zendesk-webhook-invocation-id"),
    "intercom": _from_body("id"),
    "mailgun": _mailgun_token,
    "paypal": _from_header("paypal-transmission-id"),
    "standard-webhooks": _from_header("webhook-id", "svix-id"),
}
