"""Standard Webhooks 1.0.0: what we sign deliveries with, and what others may sign theirs with."""

from __future__ import annotations

import base64
import binascii
import hmac
import os

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

PREFIX = "whsec_"
PUBLIC_PREFIX = "whpk_"
_SECRET_BYTES = 32
_FEWEST_BYTES = 16
_MOST_SIGNATURES = 20


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()


def sign(signers: list[HMAC], message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` header: one signature for each secret that is good now."""
    head = f"{message_id}.{timestamp}.".encode()
    signatures = []
    for signer in signers:
        signing = signer.copy()
        signing.update(head)
        signing.update(body)
        signatures.append(f"v1,{base64.b64encode(signing.finalize()).decode()}")
    return " ".join(signatures)


def signer(secret: str) -> HMAC:
    """What to sign with. A secret that another service wrote is known to its receiver as it is.

    (Python's own would let go of the interpreter's lock for every signature, and wait for it.)
    """
    try:
        key = key_of(secret)
    except ValueError:
        key = secret.encode()
    return HMAC(key, SHA256())


def matches(secret: str, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    """Whether one of the signatures was made with the secret, or for the public key."""
    content = _content(message_id, timestamp, body)
    given = [part.partition(",") for part in signatures.split(" ")[:_MOST_SIGNATURES]]
    if secret.startswith(PUBLIC_PREFIX):
        return any(_signed(secret, content, s) for version, _, s in given if version == "v1a")
    try:
        wanted = _hmac(secret, content)
    except (binascii.Error, ValueError):
        return False
    return any(
        hmac.compare_digest(wanted, signature.encode("utf-8", "replace"))
        for version, _, signature in given
        if version == "v1"
    )


def key_of(secret: str) -> bytes:
    """The bytes of a secret, with or without padding; ValueError when it is not a valid one."""
    text = secret.removeprefix(PREFIX).removeprefix(PUBLIC_PREFIX)
    key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    if len(key) < _FEWEST_BYTES:
        raise ValueError(f"a secret has at least {_FEWEST_BYTES} bytes")
    return key


def _hmac(secret: str, content: bytes) -> bytes:
    return base64.b64encode(hmac.digest(key_of(secret), content, "sha256"))


def _signed(public_key: str, content: bytes, signature: str) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(key_of(public_key))
        key.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _content(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body
