"""PayPal's signature: by a certificate that PayPal itself must have, checked to its root.

What is signed is a checksum of the body that can be forged, so that one genuine signature fits many
bodies. Therefore its time must be near, and a transmission is taken once.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from waystation.errors import Overloaded
from waystation.patterns import Newest
from waystation.relay.receiving.dedupe import DEFAULT_WINDOW
from waystation.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.clock import Clock
    from waystation.outbound import Outbound
    from waystation.relay.receiving.signatures import Arrival

_NAMES = {
    "api.paypal.com": "messageverificationcerts.paypal.com",
    "api.sandbox.paypal.com": "messageverificationcerts.sandbox.paypal.com",
}
"""Where certificates come from, and whose they must be."""

_PATH = re.compile(r"/v1/notifications/certs/[A-Za-z0-9_-]{1,200}")
_MOST_KEPT = 100
_FETCHES_AT_ONCE = 5
_MOST_FETCHES = 50
_FORGET_FAILURE_SECONDS = 60.0
_TOLERANCE_SECONDS = DEFAULT_WINDOW
"""Transmissions are remembered for as long: an older one could come a second time."""


def signed(arrival: Arrival, webhook_id: str, key: RSAPublicKey) -> bool:
    """Whether PayPal sent a webhook lately, by the key of its certificate."""
    sent_at = arrival.header("paypal-transmission-time")
    if abs(arrival.now - seconds_of(sent_at)) > _TOLERANCE_SECONDS:
        return False
    if arrival.header("paypal-auth-algo").upper() != "SHA256WITHRSA":
        return False
    crc = str(zlib.crc32(arrival.body))
    parts = [arrival.header("paypal-transmission-id"), sent_at, webhook_id, crc]
    try:
        signature = base64.b64decode(arrival.header("paypal-transmission-sig"), validate=True)
        content = "|".join(parts).encode("utf-8", "replace")
        key.verify(signature, content, PKCS1v15(), SHA256())
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


class Certificates:
    """The keys of PayPal's certificates, from PayPal's own hosts only, fetched once each."""

    def __init__(
        self, outbound: Outbound, clock: Clock, roots: Sequence[x509.Certificate] | None = None
    ) -> None:
        """`roots` are the authorities to trust: by default those that this machine trusts."""
        self._outbound = outbound
        self._clock = clock
        self._roots = roots
        self._good: Newest[str, tuple[float, RSAPublicKey]] = Newest(_MOST_KEPT)
        self._bad: Newest[str, float] = Newest(_MOST_KEPT)
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def key(self, url: str) -> RSAPublicKey | None:
        """The key of the certificate at a URL; None where there is none to be trusted now."""
        host = _paypals(url)
        if host is None:
            return None
        now = self._clock()
        if (kept := self._good.get(url)) is not None and kept[0] > now:
            return kept[1]
        if self._bad.get(url, 0.0) > now:
            return None
        task = self._fetching.get(url)
        if task is None:
            if len(self._fetching) >= _MOST_FETCHES:
                raise Overloaded("too many certificates are being fetched", retry_after=5.0)
            task = self._fetching[url] = asyncio.create_task(self._fetch(url, host))
            task.add_done_callback(lambda _: self._fetching.pop(url, None))
        await asyncio.shield(task)
        found = self._good.get(url)
        return None if found is None or found[0] <= now else found[1]

    async def _fetch(self, url: str, host: str) -> None:
        """What cannot be had or trusted is remembered for a while, too."""
        now = self._clock()
        async with self._places:
            reply = await self._outbound.request("GET", url, seconds=5.0)
        found = None
        if reply.status == 200 and reply.whole:
            found = await asyncio.to_thread(self._trusted, reply.body, _NAMES[host], now)
        if found is None:
            self._bad[url] = now + _FORGET_FAILURE_SECONDS
        else:
            self._good[url] = found

    def _trusted(self, pem: bytes, name: str, now: float) -> tuple[float, RSAPublicKey] | None:
        """Until when the first certificate of a file can be relied on, and its key."""
        try:
            leaf, *others = x509.load_pem_x509_certificates(pem)
            policy = PolicyBuilder().store(Store(list(self._trust())))
            policy = policy.time(datetime.fromtimestamp(now, UTC).replace(tzinfo=None))
            policy.build_server_verifier(x509.DNSName(name)).verify(leaf, others)
            key = leaf.public_key()
        except (ValueError, VerificationError, UnsupportedAlgorithm):
            return None
        if not isinstance(key, RSAPublicKey):
            return None
        return leaf.not_valid_after_utc.timestamp(), key

    def _trust(self) -> Sequence[x509.Certificate]:
        if self._roots is None:
            found = ssl.create_default_context().get_ca_certs(binary_form=True)
            self._roots = [x509.load_der_x509_certificate(der) for der in found]
        return self._roots


def _paypals(url: str) -> str | None:
    """The host of a URL, if it is PayPal's and the URL leads to a certificate."""
    if not url.isascii() or not url.isprintable():
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    good = (
        parts.scheme == "https"
        and parts.netloc in _NAMES
        and port is None
        and _PATH.fullmatch(parts.path) is not None
        and not parts.query
        and not parts.fragment
    )
    return parts.netloc if good else None
