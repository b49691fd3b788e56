"""Errors as problem documents (RFC 9457): one table says which error is which answer."""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import Any

import msgspec

from waystation import errors

JSON = b"application/problem+json"
_NAMED = re.compile(r"(?:unknown|required) field `([^`]{1,100})`")

STATUSES: dict[type[Exception], int] = {
    errors.InvalidInput: 400,
    errors.InvalidRequest: 400,
    errors.KeyMissing: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.InProgress: 409,
    errors.ResultUnavailable: 409,
    errors.TransactionConflict: 409,
    errors.KeyReused: 422,
    errors.TooManyRequests: 429,
    errors.Overloaded: 503,
    errors.StoreUnavailable: 503,
    errors.QueueUnavailable: 503,
    errors.BlobError: 503,
}


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one part of a request."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document. `code` is for programs, `detail` for people."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str | None = None
    errors: list[FieldError] | None = None
    request_id: str | None = None


def problem(
    status: int,
    detail: str | None = None,
    *,
    code: str | None = None,
    errors: list[FieldError] | None = None,
) -> Problem:
    title = HTTPStatus(status).phrase
    code = code or title.lower().replace(" ", "_").replace("-", "_")
    return Problem(title=title, status=status, code=code, detail=detail, errors=errors)


def problem_of(error: Exception) -> tuple[Problem, dict[str, str]] | None:
    """The document for an error that callers should hear of, and headers to go with it."""
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    if status is None:
        return None
    field = getattr(error, "field", None)
    named = [FieldError(field, str(error))] if field else None
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="waystation"'
    retry_after = getattr(error, "retry_after", 5.0 if status == 503 else None)
    if retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after)))
    # What our own parts could not do is in the log; callers need only know that it may pass.
    shown = f"{field}: {error}" if field else str(error)
    detail = "try again in a moment" if status == 503 else shown
    code = _snake(type(error).__name__)
    return problem(status, detail, code=code, errors=named), headers


def encode(document: Problem, request_id: str | None) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(document, request_id=request_id))


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def validation_errors(extra: Any) -> list[FieldError]:
    """The parts that a request's validation names."""
    found = []
    for entry in extra if isinstance(extra, list) else []:
        message = str(entry["message"])
        place = entry.get("key") or ""
        path = [] if place == "data" else [str(place)]
        if missing := _NAMED.search(message):
            path.append(missing[1])
        found.append(FieldError(".".join(filter(None, path)) or "body", message))
    return found
