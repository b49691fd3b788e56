"""Settings: where they come from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystation.desk.settings import DeskSettings
from waystation.errors import SettingsError
from waystation.gate.settings import GateSettings
from waystation.seam import settings_of
from waystation.settings import Names, Settings, load_settings
from waystation.systems import SYSTEMS

KINDS = settings_of(SYSTEMS)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_needs_to_be_set() -> None:
    settings = load_settings(KINDS, environ={})
    assert settings.store == "sqlite:///waystation.db"
    assert (settings.queue, settings.port, settings.env) == ("embedded", 8080, "dev")


def test_the_environment_is_read() -> None:
    settings = load_settings(
        KINDS,
        environ={
            "WAYSTATION_PORT": "9000",
            "WAYSTATION_DESK_EXCERPTS": "true",
            "WAYSTATION_ALLOW_NETWORKS": "10.0.0.0/8, 192.168.0.0/16",
            "HOME": "/root",
        },
    )
    assert (settings.port, settings.of(DeskSettings).desk_excerpts) == (9000, True)
    assert settings.networks == ["10.0.0.0/8", "192.168.0.0/16"]


def test_a_file_is_read_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'port = 9000\nenv = "prod"\nWAYSTATION_HOST = "::"\ndesk_webhook_tokens = ["a"]\n'
    )
    settings = load_settings(KINDS, file, environ={"WAYSTATION_PORT": "9001"})
    assert (settings.port, settings.env, settings.host) == (9001, "prod", "::")
    assert settings.of(DeskSettings).desk_webhook_tokens == ["a"]


def test_the_usual_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "waystation.toml").write_text("port = 9000")
    assert load_settings(KINDS, environ={}).port == 9000


def test_what_is_given_wins() -> None:
    assert load_settings(KINDS, environ={"WAYSTATION_PORT": "1"}, port=2, host=None).port == 2


def test_a_variable_set_to_nothing_is_not_set() -> None:
    settings = load_settings(
        KINDS, environ={"WAYSTATION_SLACK_SIGNING_SECRET": "", "WAYSTATION_HOST": " "}
    )
    assert (settings.of(GateSettings).slack_signing_secret, settings.host) == (None, "127.0.0.1")


@pytest.mark.parametrize("name", ["slack_signing_secret", "desk_hmac_secret", "host"])
def test_an_empty_secret_or_host_in_a_file_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'{name} = ""')
    with pytest.raises(SettingsError, match=name):
        load_settings(KINDS, file, environ={})


def test_an_unknown_name_is_refused_with_a_hint() -> None:
    with pytest.raises(SettingsError, match=r"WAYSTATION_STOR: .* did you mean store\?"):
        load_settings(KINDS, environ={"WAYSTATION_STOR": "x"})


def test_an_unknown_name_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("colour = 1")
    with pytest.raises(SettingsError, match="colour"):
        load_settings(KINDS, file, environ={})


@pytest.mark.parametrize("content", ["port = ", "\xff", 'port = "x"', "store = 7"])
def test_a_bad_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError):
        load_settings(KINDS, file, environ={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="own"):
        load_settings(KINDS, tmp_path / "own.toml", environ={})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"store": "postgres://x"}, "store"),
        ({"store": "sqlite:///"}, "store"),
        ({"queue": "rabbit"}, "queue"),
        ({"store": "dynamodb://eu-west-1", "secret_key": "k" * 32}, "queue"),
        ({"store": "dynamodb://eu-west-1", "queue": "sqs://"}, "secret_key"),
        ({"secret_key": "short"}, "secret_key"),
        ({"blobs": "nowhere"}, "blobs"),
        ({"env": "Prod!"}, "env"),
        ({"public_url": "waystation.example"}, "public_url"),
        ({"public_url": "http://["}, "public_url"),
        ({"port": 99999}, "port"),
        ({"slack_api_url": "ftp://x"}, "slack_api_url"),
        ({"allow_networks": ["10.0.0.1/8"]}, "allow_networks"),
        ({"trusted_proxies": ["everyone"]}, "trusted_proxies"),
        ({"github_client_id": "x", "public_url": "https://x.example"}, "github_client_secret"),
        ({"google_client_id": "x", "google_client_secret": "y"}, "public_url"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_settings(KINDS, environ={}, **given)


@pytest.mark.parametrize(
    ("name", "text"), [("PORT", "http"), ("PORT", "70000"), ("DESK_OUTBOUND", "perhaps")]
)
def test_a_value_of_the_wrong_type_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"WAYSTATION_{name}"):
        load_settings(KINDS, environ={f"WAYSTATION_{name}": text})


def test_deliveries_reach_loopback_only_in_development() -> None:
    assert Settings().networks == ["127.0.0.0/8", "::1/128"]
    assert Settings(env="prod").networks == []


def test_a_key_is_made_beside_the_database(tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path / 'own.db'}")
    key = settings.key()
    assert (tmp_path / "waystation.key").read_text().strip() == key
    assert settings.key() == key


def fields() -> list[Any]:
    """Every setting, as msgspec knows it."""
    kinds = [msgspec.inspect.type_info(kind) for kind in Names(KINDS).kinds]
    return [field for kind in kinds for field in kind.fields if field.name != "own"]  # type: ignore[attr-defined]


def test_secrets_are_not_shown() -> None:
    given: dict[str, Any] = {
        "github_client_id": "x",
        "google_client_id": "x",
        "public_url": "https://x.example",
        "stripe_prices": ["price_1=pro"],
    }
    secrets = [field for field in fields() if "'secret': True" in str(field.type)]
    assert len(secrets) == 9
    for field in secrets:
        given[field.name] = ["hush" * 10] if "ListType" in str(field.type) else "hush" * 10
    settings = load_settings(KINDS, environ={}, **given)
    shown = [settings, settings.own, *settings.own.values()]
    assert "hush" not in repr(shown)


def test_every_setting_is_described_and_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    for field in fields():
        described = field.type.extra_json_schema or {}
        assert described.get("description"), field.name
        assert f"`WAYSTATION_{field.name.upper()}`" in page, field.name
        assert described["description"] in page, field.name
    assert len(fields()) > 20
