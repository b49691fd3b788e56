"""Who sent a webhook: the signatures of every provider.

A check answers for one secret; a source may have several that are good at once. Whatever a header
holds, the answer is yes or no, never an exception.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal, get_args
from urllib.parse import parse_qs, parse_qsl, urlsplit, urlunsplit

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from waystation.patterns import slack_signed
from waystation.relay import standard
from waystation.relay.rules.paths import UNREADABLE
from waystation.times import seconds_of

Algorithm = Literal["sha1", "sha256", "sha512"]
_MOST_SIGNATURES = 20
_MOST_FIELDS = 5_000
_MAILGUN_TOKEN = re.compile(r"[0-9A-Za-z]{50}")
_MAILGUN_SECONDS = 12 * 3600
"""It tries again for eight hours with the same signature; its token is remembered for as long."""


class Arrival(msgspec.Struct, frozen=True):
    """A request as its sender signed it. `url` is the public one, with its query."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    now: float

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def fresh(self, timestamp: str, tolerance: float, *, unit: float = 1.0) -> bool:
        """Whether a time is near enough to ours."""
        if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 15:
            return False
        return abs(self.now - int(timestamp) / unit) <= tolerance


class CustomScheme(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a sender that we do not know signs: an HMAC of the body in a header.

    With a timestamp, what is signed is the timestamp, `joined_by` and the body. A header such as
    `t=…,v1=…` has fields, with a `separator` between them: then `signature_field` is `v1` and
    `timestamp_field` `t`.
    """

    header: str = "x-signature"
    algorithm: Algorithm = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    timestamp_header: str | None = None
    tolerance: int = 300
    signature_field: str | None = None
    timestamp_field: str | None = None
    separator: str = ","
    joined_by: str = "."

    def given(self, arrival: Arrival) -> list[str]:
        """The signatures that a request has. More than one are sent while secrets are changed."""
        header = arrival.header(self.header.lower())
        if self.signature_field is None:
            return [header]
        pairs = _pairs(header, self.separator)
        found = [value for name, value in pairs if name == self.signature_field]
        return found[:_MOST_SIGNATURES]

    def stamp(self, arrival: Arrival) -> str | None:
        """The time that a request says it was signed at; None where none is signed."""
        if self.timestamp_header is not None:
            return arrival.header(self.timestamp_header.lower())
        if self.timestamp_field is None:
            return None
        pairs = _pairs(arrival.header(self.header.lower()), self.separator)
        return next((value for name, value in pairs if name == self.timestamp_field), "")


Check = Callable[[Arrival, str], bool]


def _hex(secret: str, content: bytes, algorithm: Algorithm = "sha256") -> str:
    return hmac.digest(secret.encode(), content, algorithm).hex()


def _base64(secret: str, content: bytes, algorithm: Algorithm = "sha256") -> str:
    return base64.b64encode(hmac.digest(secret.encode(), content, algorithm)).decode()


def same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _pairs(header: str, separator: str) -> list[tuple[str, str]]:
    found = []
    for part in header.split(separator)[: 2 * _MOST_SIGNATURES]:
        name, _, value = part.strip().partition("=")
        found.append((name, value))
    return found


def _timed(arrival: Arrival, header: str, separator: str, names: tuple[str, str]) -> Any:
    """The timestamp and the signatures of a header such as `t=…,v1=…,v1=…`."""
    pairs = _pairs(arrival.header(header), separator)
    stamp = next((value for name, value in pairs if name == names[0]), "")
    return stamp, [value for name, value in pairs if name == names[1]][:_MOST_SIGNATURES]


def _stripe(arrival: Arrival, secret: str) -> bool:
    stamp, given = _timed(arrival, "stripe-signature", ",", ("t", "v1"))
    if not arrival.fresh(stamp, 300):
        return False
    wanted = _hex(secret, stamp.encode() + b"." + arrival.body)
    return any(same(signature, wanted) for signature in given)


def _paddle(arrival: Arrival, secret: str) -> bool:
    stamp, given = _timed(arrival, "paddle-signature", ";", ("ts", "h1"))
    if not arrival.fresh(stamp, 5):
        return False
    wanted = _hex(secret, stamp.encode() + b":" + arrival.body)
    return any(same(signature, wanted) for signature in given)


def _github(arrival: Arrival, secret: str) -> bool:
    wanted = "sha256=" + _hex(secret, arrival.body)
    return same(arrival.header("x-hub-signature-256"), wanted)


def _intercom(arrival: Arrival, secret: str) -> bool:
    wanted = "sha1=" + _hex(secret, arrival.body, "sha1")
    return same(arrival.header("x-hub-signature"), wanted)


def _shopify(arrival: Arrival, secret: str) -> bool:
    return same(arrival.header("x-shopify-hmac-sha256"), _base64(secret, arrival.body))


def _slack(arrival: Arrival, secret: str) -> bool:
    return slack_signed(
        secret,
        arrival.header("x-slack-request-timestamp"),
        arrival.header("x-slack-signature"),
        arrival.body,
        arrival.now,
    )


def _twilio(arrival: Arrival, secret: str) -> bool:
    signed = ""
    wanted_hash = parse_qs(urlsplit(arrival.url).query).get("bodySHA256", [""])[0]
    if wanted_hash:
        if not same(wanted_hash.lower(), sha256(arrival.body).hexdigest()):
            return False
    else:
        fields = _twilio_fields(arrival.body)
        if fields is None:
            return False
        signed = fields
    given = arrival.header("x-twilio-signature")
    return any(
        same(given, _base64(secret, (url + signed).encode(), "sha1"))
        for url in _with_and_without_port(arrival.url)
    )


def _twilio_fields(body: bytes) -> str | None:
    """Every field's name and value, by name and each pair once; None if it is no form."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None
    return "".join(name + value for name, value in sorted(set(pairs)))


def _with_and_without_port(url: str) -> list[str]:
    """Twilio signs a URL with its default port or without."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return [url]
    host = parts.netloc.rpartition("@")[2]
    bare = host.rsplit(":", 1)[0] if port is not None else host
    full = f"{bare}:{port or (443 if parts.scheme == 'https' else 80)}"
    return [url, *(urlunsplit(parts._replace(netloc=netloc)) for netloc in (bare, full))]


def _square(arrival: Arrival, secret: str) -> bool:
    wanted = _base64(secret, arrival.url.encode() + arrival.body)
    return same(arrival.header("x-square-hmacsha256-signature"), wanted)


class _Linear(msgspec.Struct, rename="camel"):
    webhook_timestamp: int


def _linear(arrival: Arrival, secret: str) -> bool:
    try:
        stamp = msgspec.json.decode(arrival.body, type=_Linear).webhook_timestamp
    except UNREADABLE:
        return False
    if not arrival.fresh(str(stamp), 60, unit=1000.0):
        return False
    return same(arrival.header("linear-signature"), _hex(secret, arrival.body))


def _zendesk(arrival: Arrival, secret: str) -> bool:
    stamp = arrival.header("x-zendesk-webhook-signature-timestamp")
    if abs(arrival.now - seconds_of(stamp)) > 300:
        return False
    wanted = _base64(secret, stamp.encode("utf-8", "replace") + arrival.body)
    return bool(stamp) and same(arrival.header("x-zendesk-webhook-signature"), wanted)


_HUBSPOT_DECODED = {f"%{ord(c):02X}": c for c in ":/?@!$'()*,;"}


def _hubspot(arrival: Arrival, secret: str) -> bool:
    stamp = arrival.header("x-hubspot-request-timestamp")
    if not arrival.fresh(stamp, 300, unit=1000.0):
        return False
    decoded = arrival.url
    for code, character in _HUBSPOT_DECODED.items():
        decoded = decoded.replace(code, character).replace(code.lower(), character)
    given = arrival.header("x-hubspot-signature-v3")
    return any(
        same(
            given, _base64(secret, (arrival.method + url).encode() + arrival.body + stamp.encode())
        )
        for url in (arrival.url, decoded)
    )


def _sendgrid(arrival: Arrival, secret: str) -> bool:
    """The secret is the public key that SendGrid shows."""
    stamp = arrival.header("x-twilio-email-event-webhook-timestamp")
    signature = arrival.header("x-twilio-email-event-webhook-signature")
    if not arrival.fresh(stamp, 300):
        return False
    try:
        key = load_der_public_key(base64.b64decode(secret))
        if not isinstance(key, EllipticCurvePublicKey):
            return False
        content = stamp.encode("utf-8", "replace") + arrival.body
        key.verify(base64.b64decode(signature, validate=True), content, ECDSA(SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


class _MailgunSignature(msgspec.Struct):
    timestamp: str
    token: str
    signature: str


class _Mailgun(msgspec.Struct):
    signature: _MailgunSignature


def mailgun_signature(body: bytes) -> _MailgunSignature | None:
    """What Mailgun puts in the body: of JSON, or among the fields of a form."""
    try:
        return msgspec.json.decode(body, type=_Mailgun, strict=False).signature
    except UNREADABLE:
        pass
    try:
        fields = dict(parse_qsl(body.decode(), max_num_fields=_MOST_FIELDS))
        return msgspec.convert(fields, _MailgunSignature)
    except (ValueError, msgspec.ValidationError):
        return None


def _mailgun(arrival: Arrival, secret: str) -> bool:
    found = mailgun_signature(arrival.body)
    if found is None or not _MAILGUN_TOKEN.fullmatch(found.token):
        return False  # of a fixed length: what is signed is the timestamp and the token in a row
    if len(found.timestamp) != 10 or not arrival.fresh(found.timestamp, _MAILGUN_SECONDS):
        return False
    content = (found.timestamp + found.token).encode("utf-8", "replace")
    return same(found.signature, _hex(secret, content))


def _standard(arrival: Arrival, secret: str) -> bool:
    # Svix's own names are older than the standard's.
    names = "webhook" if "webhook-id" in arrival.headers else "svix"
    stamp = arrival.header(f"{names}-timestamp")
    if not arrival.fresh(stamp, 300):
        return False
    given = arrival.header(f"{names}-signature")
    return standard.matches(secret, arrival.header(f"{names}-id"), stamp, arrival.body, given)


def custom(scheme: CustomScheme) -> Check:
    """The check of a scheme that a source describes itself."""

    def check(arrival: Arrival, secret: str) -> bool:
        content = arrival.body
        stamp = scheme.stamp(arrival)
        if stamp is not None:
            if not arrival.fresh(stamp, scheme.tolerance):
                return False
            content = f"{stamp}{scheme.joined_by}".encode() + content
        digest = _hex if scheme.encoding == "hex" else _base64
        wanted = scheme.prefix + digest(secret, content, scheme.algorithm)
        return any(same(signature, wanted) for signature in scheme.given(arrival))

    return check


def check_secret(provider: str, secret: str) -> None:
    """ValueError for what could never be a secret of a provider."""
    if provider == "standard-webhooks":
        standard.key_of(secret)
    elif provider == "sendgrid":
        try:
            load_der_public_key(base64.b64decode(secret, validate=True))
        except (UnsupportedAlgorithm, TypeError) as error:
            raise ValueError(str(error)) from error


CHECKS: dict[str, Check] = {
    "stripe": _stripe,
    "github": _github,
    "shopify": _shopify,
    "slack": _slack,
    "twilio": _twilio,
    "square": _square,
    "paddle": _paddle,
    "linear": _linear,
    "zendesk": _zendesk,
    "intercom": _intercom,
    "hubspot": _hubspot,
    "sendgrid": _sendgrid,
    "mailgun": _mailgun,
    "standard-webhooks": _standard,
}
Provider = Literal[
    "custom",
    "github",
    "hubspot",
    "intercom",
    "linear",
    "mailgun",
    "paddle",
    "paypal",
    "sendgrid",
    "shopify",
    "slack",
    "square",
    "standard-webhooks",
    "stripe",
    "twilio",
    "zendesk",
]
PROVIDERS: frozenset[str] = frozenset(get_args(Provider))
SIGN_THE_URL = frozenset({"twilio", "square", "hubspot"})
