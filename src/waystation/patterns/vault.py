"""Encryption of what must not lie readable in a database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from waystation.errors import SettingsError
from waystation.store import Item, checkpoints

if TYPE_CHECKING:
    from pathlib import Path

_NONCE_BYTES = 12
_VERSION = b"\x01"
MIN_KEY_CHARACTERS = 32


class Vault:
    """Seals and opens with keys derived from one secret.

    `context` says what is sealed and whose it is: a copy in another place does not open there.
    """

    def __init__(self, secret_key: str) -> None:
        if len(secret_key) < MIN_KEY_CHARACTERS:
            raise SettingsError(f"secret_key needs at least {MIN_KEY_CHARACTERS} characters")
        self._secret = secret_key.encode()
        self._cipher = AESGCM(self.key("seal"))

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose, the same whenever the secret is the same."""
        return HKDF(SHA256(), 32, b"waystation", purpose.encode()).derive(self._secret)

    def seal(self, plain: bytes, context: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plain, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """The plain text; SettingsError when it was sealed with another key, or elsewhere."""
        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, rest, context.encode())
        except (InvalidTag, ValueError) as error:
            raise SettingsError(
                f"{context} cannot be decrypted: is secret_key the one it was written with?"
            ) from error


class KeyCheck(Item, table=checkpoints, pk="KEYCHECK#{check_id}", sk="CHECK", kw_only=True):
    """Something sealed with the key that a database is written with, to know it again by."""

    check_id: str
    sealed: bytes
    expires_at: int | None = None


def load_or_create_key(path: Path) -> str:
    """The secret in a file that only its owner can read; created at the first start."""
    if path.exists():
        return _read_key(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(os.urandom(32).hex() + "\n")
            file.flush()
            os.fsync(handle)
        try:
            path.hardlink_to(draft)  # all of it or nothing, and never over another's
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise SettingsError(f"the key file {path} cannot be created: {error}") from error
    return _read_key(path)


def _read_key(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(f"{path} can be read by others: chmod 600 {path}")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the key file {path} cannot be read: {error}") from error
