"""What waits in the queue: an envelope that only we can open."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

from waystation.desk.receiving.envelopes import Envelope

if TYPE_CHECKING:
    from waystation.patterns import Vault

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Envelope)


class Parcel(msgspec.Struct):
    """The body of a queued message: which event it is, and the rest sealed."""

    event_id: str
    sealed: str


def seal(vault: Vault, envelope: Envelope) -> Parcel:
    sealed = vault.seal(_encode(envelope), _context(envelope.event_id))
    return Parcel(envelope.event_id, base64.b64encode(sealed).decode())


def unseal(vault: Vault, parcel: Parcel) -> Envelope:
    """The envelope; SettingsError when it was sealed with another key."""
    return _decoder.decode(vault.open(base64.b64decode(parcel.sealed), _context(parcel.event_id)))


def _context(event_id: str) -> str:
    return f"desk event {event_id}"
