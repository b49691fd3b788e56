"""Who sent this: every webhook is checked before it is taken, and challenges are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from waystation.errors import NotFound, Unauthenticated
from waystation.patterns import Limit, LocalLimiter, sender_key
from waystation.relay.directory import ALERTS_PROVIDER, Known
from waystation.relay.receiving import paypal, signatures
from waystation.relay.receiving.signatures import Arrival
from waystation.relay.rules.paths import UNREADABLE, Webhook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509

    from waystation.clock import Clock
    from waystation.outbound import Outbound
    from waystation.relay.directory import Directory
    from waystation.relay.receiving.intake import Intake

MAX_BODY = 256 * 1024
_MAX_PATH = 1_000
_REFUSALS = Limit(3_000, 60)
"""Wrong signatures from one address for one source, before its requests are refused unseen. Forgers
may share an address with the genuine sender, so that this only bounds what they can cost."""

_MAX_CHALLENGE = 1_000


class Answer(msgspec.Struct, frozen=True):
    """What the sender gets: its receipt as JSON, or a challenge as text."""

    body: bytes
    content_type: bytes = b"application/json"


class Checking:
    """Takes requests as they came, without knowing about HTTP servers."""

    def __init__(
        self,
        directory: Directory,
        intake: Intake,
        outbound: Outbound,
        clock: Clock,
        paypal_roots: Sequence[x509.Certificate] | None = None,
    ) -> None:
        self._directory = directory
        self._intake = intake
        self._clock = clock
        self._certificates = paypal.Certificates(outbound, clock, paypal_roots)
        self._strangers = LocalLimiter(clock)

    async def take(self, source_id: str, webhook: Webhook, sender: str, url: str) -> Answer:
        """`url` is the whole of what was asked for, but for its query. Refusals are raised."""
        known = await self._directory.source(source_id)
        if known is None or known.source.status != "active" or len(webhook.path) > _MAX_PATH:
            raise NotFound("there is no such source, or it is paused")
        if known.source.provider == ALERTS_PROVIDER:
            raise NotFound("only this installation itself sends to this source")
        stranger = f"{source_id} {sender_key(sender)}"
        self._strangers.check(stranger, _REFUSALS)
        if (text := hub_challenge(known, webhook)) is not None:
            return Answer(text.encode(), b"text/plain; charset=utf-8")
        try:
            if known.check is not None:
                await self._check(known, webhook, url)
        except Unauthenticated:
            # Forgers use up their own patience, not the minute of the source.
            self._strangers.take(stranger, _REFUSALS)
            raise
        self._intake.admit(known)
        if (answer := provider_challenge(known.source.provider, webhook)) is not None:
            return answer
        receipt = await self._intake.receive(known, webhook, sender)
        return Answer(msgspec.json.encode(receipt))

    async def _check(self, known: Known, webhook: Webhook, url: str) -> None:
        source = known.source
        if source.provider == "intercom" and webhook.method == "HEAD":
            return
        signed_url = url
        if source.public_url is not None:
            _, _, rest = url.partition(f"/in/{source.source_id}")
            signed_url = source.public_url + rest
        if webhook.query_string:
            signed_url += f"?{webhook.query_string}"
        arrival = Arrival(
            webhook.method, signed_url, webhook.headers, webhook.content, self._clock()
        )
        if source.provider == "paypal":
            good = await self._from_paypal(known, arrival)
        else:
            good = known.signed(arrival)
        if not good:
            raise Unauthenticated("the signature is missing, wrong or too old")

    async def _from_paypal(self, known: Known, arrival: Arrival) -> bool:
        key = await self._certificates.key(arrival.header("paypal-cert-url"))
        if key is None:
            return False
        return any(paypal.signed(arrival, webhook_id, key) for webhook_id in known.secrets)


class _Challenge(msgspec.Struct):
    type: str
    challenge: str


def provider_challenge(provider: str, webhook: Webhook) -> Answer | None:
    """The answer to a provider that asks whether we are there, after its signature was checked."""
    if provider == "intercom" and webhook.method == "HEAD":
        return Answer(b"")
    if provider != "slack" or b"url_verification" not in webhook.content:
        return None
    try:
        asked = msgspec.json.decode(webhook.content, type=_Challenge)
    except UNREADABLE:
        return None
    if asked.type != "url_verification":
        return None
    return Answer(msgspec.json.encode({"challenge": asked.challenge[:_MAX_CHALLENGE]}))


def hub_challenge(known: Known, webhook: Webhook) -> str | None:
    """What a WebSub or Meta subscription wants echoed, if its token is one of the secrets."""
    if webhook.method != "GET" or known.source.provider != "custom" or not known.secrets:
        return None
    if "hub.challenge" not in webhook.query_string:
        return None
    try:
        asked = dict(parse_qsl(webhook.query_string, max_num_fields=20))
    except ValueError:
        return None
    token = asked.get("hub.verify_token", "")
    right = [signatures.same(token, secret) for secret in known.secrets]
    if asked.get("hub.mode") != "subscribe" or not any(right):
        return None
    return asked.get("hub.challenge", "")[:_MAX_CHALLENGE]
