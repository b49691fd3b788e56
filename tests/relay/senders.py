"""Webhooks signed as each provider signs them, by its own SDK where there is one that can."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import stripe
import svix
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hubspot.utils.signature import Signature
from paddle_billing.Notifications import PaddleSignature
from paypalrestsdk.notifications import WebhookEvent
from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook
from twilio.request_validator import RequestValidator

URL = "https://hooks.example.com/in/public"
CERTIFICATE_URL = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594"


class Signed(msgspec.Struct):
    headers: dict[str, str]
    body: bytes
    rest: str = ""


class Sender(msgspec.Struct):
    """How a provider sends: the body it has, a secret, and the signature for a time."""

    body: bytes
    secret: str
    sign: Callable[[bytes, str, float], Signed]
    dated: bool = False
    """Whether what is old is refused."""


def _digest(secret: str, content: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(secret.encode(), content, algorithm).digest()


def _stripe(body: bytes, secret: str, now: float) -> Signed:
    header = stripe.WebhookSignature.generate_signature_header(
        payload=body.decode(), secret=secret, timestamp=int(now)
    )
    return Signed({"Stripe-Signature": header}, body)


def _github(body: bytes, secret: str, now: float) -> Signed:
    return Signed({"X-Hub-Signature-256": f"sha256={_digest(secret, body).hex()}"}, body)


def _shopify(body: bytes, secret: str, now: float) -> Signed:
    signature = base64.b64encode(_digest(secret, body)).decode()
    return Signed({"X-Shopify-Hmac-SHA256": signature}, body)


def _slack(body: bytes, secret: str, now: float) -> Signed:
    stamp = str(int(now))
    signature = SignatureVerifier(secret).generate_signature(timestamp=stamp, body=body)
    assert signature is not None
    return Signed({"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": signature}, body)


def _twilio(body: bytes, secret: str, now: float) -> Signed:
    signature = RequestValidator(secret).compute_signature(URL, dict(parse_qsl(body.decode())))
    headers = {
        "X-Twilio-Signature": signature,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return Signed(headers, body)


def twilio_json(body: bytes, secret: str, now: float) -> Signed:
    rest = f"?bodySHA256={sha256(body).hexdigest()}"
    signature = RequestValidator(secret).compute_signature(URL + rest, {})
    return Signed({"X-Twilio-Signature": signature}, body, rest)


def _square(body: bytes, secret: str, now: float) -> Signed:
    signature = base64.b64encode(_digest(secret, URL.encode() + body)).decode()
    return Signed({"x-square-hmacsha256-signature": signature}, body)


def _paddle(body: bytes, secret: str, now: float) -> Signed:
    stamp = int(now)
    signature = PaddleSignature.calculate_hmac(secret, f"{stamp}:".encode() + body).hexdigest()
    return Signed({"Paddle-Signature": f"ts={stamp};h1={signature}"}, body)


def _linear(body: bytes, secret: str, now: float) -> Signed:
    parts = msgspec.json.decode(body) | {"webhookTimestamp": int(now * 1000)}
    dated = msgspec.json.encode(parts)
    return Signed({"Linear-Signature": _digest(secret, dated).hex()}, dated)


def _zendesk(body: bytes, secret: str, now: float) -> Signed:
    stamp = datetime.fromtimestamp(now, UTC).isoformat()
    signature = base64.b64encode(_digest(secret, stamp.encode() + body)).decode()
    headers = {
        "X-Zendesk-Webhook-Signature": signature,
        "X-Zendesk-Webhook-Signature-Timestamp": stamp,
    }
    return Signed(headers, body)


def _intercom(body: bytes, secret: str, now: float) -> Signed:
    return Signed({"X-Hub-Signature": f"sha1={_digest(secret, body, 'sha1').hex()}"}, body)


def _hubspot(body: bytes, secret: str, now: float) -> Signed:
    stamp = str(int(now * 1000))
    signature = Signature.get_signature(secret, body.decode(), "v3", URL, "POST", stamp)
    headers = {"X-HubSpot-Signature-v3": signature, "X-HubSpot-Request-Timestamp": stamp}
    return Signed(headers, body)


@lru_cache(maxsize=1)
def _sendgrid_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _sendgrid_public() -> str:
    key = _sendgrid_key().public_key()
    return base64.b64encode(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).decode()


def _sendgrid(body: bytes, secret: str, now: float) -> Signed:
    stamp = str(int(now))
    signature = _sendgrid_key().sign(stamp.encode() + body, ec.ECDSA(SHA256()))
    headers = {
        "X-Twilio-Email-Event-Webhook-Signature": base64.b64encode(signature).decode(),
        "X-Twilio-Email-Event-Webhook-Timestamp": stamp,
    }
    return Signed(headers, body)


def _mailgun(body: bytes, secret: str, now: float) -> Signed:
    stamp, token = str(int(now)), "t" * 50
    signature = _digest(secret, (stamp + token).encode()).hex()
    parts = {"timestamp": stamp, "token": token, "signature": signature}
    return Signed({}, msgspec.json.encode(msgspec.json.decode(body) | {"signature": parts}))


@lru_cache(maxsize=1)
def _paypal_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@lru_cache(maxsize=1)
def _root_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@lru_cache(maxsize=1)
def paypal_root() -> x509.Certificate:
    """An authority that stands for the one that PayPal's certificates come from."""
    key = _root_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A root")])
    return (
        _certificate(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, SHA256())
    )


def paypal_certificate(
    name: str = "messageverificationcerts.paypal.com",
    issuer: rsa.RSAPrivateKey | None = None,
    valid_days: int = 36_500,
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _certificate(subject, paypal_root().subject, _paypal_key(), valid_days)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(_root_key().public_key()),
            critical=False,
        )
        .sign(issuer or _root_key(), SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, valid_days: int = 36_500
) -> x509.CertificateBuilder:
    begins = datetime(2020, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=valid_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _paypal(body: bytes, secret: str, now: float) -> Signed:
    moment = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
    content = WebhookEvent._get_expected_sig("transmission-1", moment, secret, body.decode())
    signature = _paypal_key().sign(content.encode(), PKCS1v15(), SHA256())
    headers = {
        "PAYPAL-TRANSMISSION-ID": "transmission-1",
        "PAYPAL-TRANSMISSION-TIME": moment,
        "PAYPAL-TRANSMISSION-SIG": base64.b64encode(signature).decode(),
        "PAYPAL-CERT-URL": CERTIFICATE_URL,
        "PAYPAL-AUTH-ALGO": "SHA256withRSA",
    }
    return Signed(headers, body)


def _standard(body: bytes, secret: str, now: float, library: Any = Webhook) -> Signed:
    moment = datetime.fromtimestamp(int(now), UTC)
    signature = library(secret).sign("msg_1", moment, body.decode())
    names = "svix" if library is svix.Webhook else "webhook"
    headers = {
        f"{names}-id": "msg_1",
        f"{names}-timestamp": str(int(now)),
        f"{names}-signature": signature,
    }
    return Signed(headers, body)


def svix_sender(body: bytes, secret: str, now: float) -> Signed:
    return _standard(body, secret, now, svix.Webhook)


def _custom(body: bytes, secret: str, now: float) -> Signed:
    return Signed({"X-Signature": _digest(secret, body).hex()}, body)


_JSON = b'{"id": "one", "text": "caf\xc3\xa9"}'
_WHSEC = "whsec_" + base64.b64encode(b"w" * 32).decode()

SENDERS: dict[str, Sender] = {
    "stripe": Sender(_JSON, "whsec_stripe", _stripe, dated=True),
    "github": Sender(_JSON, "a secret", _github),
    "shopify": Sender(_JSON, "a secret", _shopify),
    "slack": Sender(b"token=x&text=hello+world", "a secret", _slack, dated=True),
    "twilio": Sender(b"From=%2B1415&Body=Hi+there&To=%2B1510", "auth token", _twilio),
    "square": Sender(_JSON, "a key", _square),
    "paddle": Sender(_JSON, "pdl_secret", _paddle, dated=True),
    "linear": Sender(_JSON, "lin_wh", _linear, dated=True),
    "zendesk": Sender(_JSON, "a secret", _zendesk),
    "intercom": Sender(_JSON, "client secret", _intercom),
    "hubspot": Sender(_JSON, "client secret", _hubspot, dated=True),
    "sendgrid": Sender(b'[{"event": "open"}]\r\n', _sendgrid_public(), _sendgrid),
    "mailgun": Sender(_JSON, "signing key", _mailgun),
    "paypal": Sender(_JSON, "WH-1", _paypal),
    "standard-webhooks": Sender(_JSON, _WHSEC, _standard, dated=True),
    "custom": Sender(_JSON, "a secret", _custom),
}
