"""Encryption at rest."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from waystation.errors import SettingsError
from waystation.patterns import Vault, load_or_create_key

if TYPE_CHECKING:
    from pathlib import Path

KEY = "k" * 32


def test_what_was_sealed_can_be_opened() -> None:
    sealed = Vault(KEY).seal(b"whsec_secret", "conn_1")
    assert b"secret" not in sealed
    assert Vault(KEY).open(sealed, "conn_1") == b"whsec_secret"


def test_sealing_twice_looks_different() -> None:
    vault = Vault(KEY)
    assert vault.seal(b"same", "a") != vault.seal(b"same", "a")


@pytest.mark.parametrize("key", ["x" * 32, KEY + "k"])
def test_another_key_opens_nothing(key: str) -> None:
    with pytest.raises(SettingsError, match="secret_key"):
        Vault(key).open(Vault(KEY).seal(b"secret", "a"), "a")


def test_a_text_moved_elsewhere_does_not_open() -> None:
    vault = Vault(KEY)
    with pytest.raises(SettingsError):
        vault.open(vault.seal(b"secret", "conn_1"), "conn_2")


@pytest.mark.parametrize("damage", [b"", b"\x01", b"short", b"\x01" + bytes(40)])
def test_a_damaged_text_does_not_open(damage: bytes) -> None:
    with pytest.raises(SettingsError):
        Vault(KEY).open(damage, "a")


def test_keys_for_different_purposes_differ() -> None:
    vault = Vault(KEY)
    assert vault.key("jwt") != vault.key("cursor")
    assert vault.key("jwt") == Vault(KEY).key("jwt")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="32"):
        Vault("too short")


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "waystation.key"
    first = load_or_create_key(path)
    assert len(first) == 64
    assert load_or_create_key(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "waystation.key"
    load_or_create_key(path)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_or_create_key(path)


def test_a_key_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be created"):
        load_or_create_key(tmp_path / "missing" / "waystation.key")
