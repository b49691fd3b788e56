"""Settings: one typed object from the environment and a TOML file."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from waystation.accounts.tables import Plan
from waystation.errors import SettingsError
from waystation.patterns.vault import MIN_KEY_CHARACTERS, load_or_create_key

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "WAYSTATION_"
DEFAULT_FILE = "waystation.toml"
_LOOPBACK = ["127.0.0.0/8", "::1/128"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Everything that can be set. The descriptions are the documentation."""

    store: Annotated[str, Meta(description="`sqlite:///path` or `dynamodb://region`")] = (
        "sqlite:///waystation.db"
    )
    queue: Annotated[str, Meta(description="`embedded` (in the SQLite file) or `sqs://region`")] = (
        "embedded"
    )
    blobs: Annotated[
        str, Meta(description="`file:path`, `s3://bucket/prefix` or another object store's URL")
    ] = "file:waystation-blobs"
    env: Annotated[
        str, Meta(description="the environment; part of every table's and queue's name")
    ] = "dev"
    host: Annotated[str, Meta(description="the address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="the port to listen on")] = 8080
    public_url: Annotated[
        str | None,
        Meta(description="the URL that others reach us at; needed for sign-in elsewhere"),
    ] = None
    secret_key: Annotated[
        str | None,
        Meta(
            description="encrypts what is secret at rest and signs tokens; made at the first start "
            "in `waystation.key` beside the SQLite file, required with any other store"
        ),
    ] = None
    api_key: Annotated[str | None, Meta(description="the key that commands call a server with")] = (
        None
    )
    trusted_proxies: Annotated[
        list[str], Meta(description="addresses of proxies whose `X-Forwarded-For` is believed")
    ] = []
    signups: Annotated[bool, Meta(description="whether anybody may open an account")] = True
    signup_plan: Annotated[Plan, Meta(description="the plan of those who sign up")] = "free"
    github_client_id: Annotated[str | None, Meta(description="turns on sign-in with GitHub")] = None
    github_client_secret: Annotated[str | None, Meta(description="goes with the id")] = None
    google_client_id: Annotated[str | None, Meta(description="turns on sign-in with Google")] = None
    google_client_secret: Annotated[str | None, Meta(description="goes with the id")] = None
    allow_networks: Annotated[
        list[str] | None,
        Meta(
            description="networks that deliveries may reach although they are private; by default "
            "loopback in `dev` and none elsewhere"
        ),
    ] = None
    stripe_webhook_secrets: Annotated[
        list[str],
        Meta(description="of Stripe's endpoint `/in/billing`; with prices it sets accounts' plans"),
    ] = []
    stripe_prices: Annotated[
        list[str], Meta(description="which plan a Stripe price buys: `price_123=pro`")
    ] = []
    slack_api_url: Annotated[str, Meta(description="where Slack's API is")] = (
        "https://slack.com/api/"
    )
    slack_signing_secret: Annotated[
        str | None, Meta(description="for workspaces without one of their own")
    ] = None
    desk_webhook_tokens: Annotated[
        list[str], Meta(description="tokens that support events may carry")
    ] = []
    desk_hmac_secret: Annotated[
        str | None, Meta(description="the secret that support events are signed with")
    ] = None
    richpanel_url: Annotated[str | None, Meta(description="where Richpanel's API is")] = None
    richpanel_api_key: Annotated[str | None, Meta(description="its key")] = None
    desk_outbound: Annotated[
        bool, Meta(description="whether the desk may act, rather than record what it would do")
    ] = False
    aws_endpoint_url: Annotated[
        str | None, Meta(description="another endpoint for all AWS services")
    ] = None

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if (value == "" and name != "env") or (isinstance(value, list) and "" in value):
                raise SettingsError(f"{name}: it is empty")
        self._check_storage()
        if not re.fullmatch(r"[a-z0-9-]{0,20}", self.env):
            raise SettingsError("env: up to 20 lower-case letters, digits and -")
        if self.secret_key is not None and len(self.secret_key) < MIN_KEY_CHARACTERS:
            raise SettingsError(f"secret_key: at least {MIN_KEY_CHARACTERS} characters")
        for name in ("public_url", "slack_api_url", "richpanel_url", "aws_endpoint_url"):
            _check_url(name, getattr(self, name))
        for name in ("allow_networks", "trusted_proxies"):
            _check_networks(name, getattr(self, name) or [])
        for provider in ("github", "google"):
            self._check_provider(provider)
        if bool(self.stripe_webhook_secrets) != bool(self.prices):
            raise SettingsError("stripe_webhook_secrets and stripe_prices go together")

    @property
    def prices(self) -> dict[str, Plan]:
        """Which plan each Stripe price buys."""
        found: dict[str, Plan] = {}
        for pair in self.stripe_prices:
            price, _, plan = pair.partition("=")
            try:
                found[price.strip()] = msgspec.convert(plan.strip(), Plan)
            except msgspec.ValidationError:
                raise SettingsError(f"stripe_prices: {pair!r} is not like price_123=pro") from None
        return found

    def _check_storage(self) -> None:
        if not re.match(r"sqlite:///.|sqlite://:memory:$|dynamodb://", self.store):
            raise SettingsError("store: sqlite:///path or dynamodb://region")
        if self.queue != "embedded" and not self.queue.startswith("sqs://"):
            raise SettingsError("queue: embedded or sqs://region")
        if self.queue == "embedded" and not self.store.startswith("sqlite:"):
            raise SettingsError("queue: embedded needs a sqlite store; with DynamoDB say sqs://")
        if self.secret_key is None and not self.store.startswith("sqlite:"):
            raise SettingsError("secret_key: required unless the store is a SQLite file")
        if not re.match(r"[a-z0-9]+:", self.blobs):
            raise SettingsError("blobs: file:path, s3://bucket or another URL")

    def _check_provider(self, provider: str) -> None:
        id_, secret = f"{provider}_client_id", f"{provider}_client_secret"
        if (getattr(self, id_) is None) != (getattr(self, secret) is None):
            raise SettingsError(f"{id_} and {secret} go together")
        if getattr(self, id_) is not None and self.public_url is None:
            raise SettingsError(f"public_url: sign-in with {provider} needs it")

    def __repr__(self) -> str:
        return f"Settings(store={self.store!r}, env={self.env!r}, …)"

    @property
    def sqlite_path(self) -> Path | None:
        """The store's file, if it is one."""
        if not self.store.startswith("sqlite:///"):
            return None
        return Path(unquote(self.store.removeprefix("sqlite:///")))

    @property
    def networks(self) -> list[str]:
        """Private networks that deliveries may reach."""
        if self.allow_networks is not None:
            return self.allow_networks
        return _LOOPBACK if self.env == "dev" else []

    @property
    def key_path(self) -> Path | None:
        """Where the secret key is kept, beside the SQLite file, unless it is set."""
        if self.secret_key is not None:
            return None
        beside = self.sqlite_path
        return (beside.parent if beside else Path()) / "waystation.key"

    def key(self) -> str:
        """The secret key; made when none is set and none is there."""
        return self.secret_key or load_or_create_key(self.key_path or Path())


NAMES = Settings.__struct_fields__
SECRETS = frozenset(
    {
        *("secret_key", "github_client_secret", "google_client_secret", "slack_signing_secret"),
        *("desk_webhook_tokens", "desk_hmac_secret", "richpanel_api_key"),
        *("stripe_webhook_secrets", "api_key"),
    }
)
_TYPES = get_type_hints(Settings, include_extras=True)
_LISTS = {name for name in NAMES if "list[str]" in str(_TYPES[name])}


def load_settings(
    file: Path | None = None, environ: Mapping[str, str] | None = None, **given: Any
) -> Settings:
    """Settings from a TOML file, then the environment, then what is given; the last one wins.

    Without a file, `waystation.toml` in the working directory is read if it is there.
    """
    found = _from_file(file)
    for name, text in (os.environ if environ is None else environ).items():
        if name.startswith(PREFIX):
            field = _known(name, name)
            if not text.strip() and field != "env":
                continue  # set to nothing is not set; no environment is one
            split = [part.strip() for part in text.split(",") if part.strip()]
            found[field] = _convert(name, field, split if field in _LISTS else text, strict=False)
    for name, value in given.items():
        if value is not None:
            found[name] = _convert(name, name, value)
    return Settings(**found)


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    fields = {name: _known(name, f"{path}: {name}") for name in content}
    return {fields[name]: _convert(name, fields[name], content[name]) for name in content}


def _known(name: str, told: str) -> str:
    field = name.lower().removeprefix(PREFIX.lower())
    if field in NAMES:
        return field
    close = difflib.get_close_matches(field, NAMES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise SettingsError(f"{told}: there is no such setting{hint}")


def _convert(told: str, field: str, value: object, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, _TYPES[field], strict=strict)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{told}: {error}") from None


def _check_url(name: str, url: str | None) -> None:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname is not None
    except ValueError:
        good = False
    if not good:
        raise SettingsError(f"{name}: a URL that begins with http:// or https://")


def _check_networks(name: str, networks: list[str]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None
