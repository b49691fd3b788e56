"""Settings: one typed object from the environment and a TOML file.

What every part uses is here. Each system declares its own settings, which are found by their type:
`settings.of(GateSettings)`. To users they are one flat list of names.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from waystation.errors import DeclarationError, SettingsError
from waystation.patterns import MIN_KEY_CHARACTERS, load_or_create_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PREFIX = "WAYSTATION_"
DEFAULT_FILE = "waystation.toml"
_LOOPBACK = ["127.0.0.0/8", "::1/128"]


Secret = Annotated[str, Meta(extra={"secret": True})]
"""A setting that no message may show."""


class SystemSettings(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The settings of one system. Their descriptions are their documentation."""

    def check(self, shared: Settings) -> None:
        """Refuse, with a SettingsError, what makes no sense beside the shared settings."""

    @property
    def table_names(self) -> Mapping[str, str]:
        """The whole names of tables that are not called as their environment has it."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


S = TypeVar("S", bound=SystemSettings)


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
        Secret | None,
        Meta(
            description="encrypts what is secret at rest and signs tokens; created at the first "
            "start in `waystation.key` beside the SQLite file, required with any other store"
        ),
    ] = None
    api_key: Annotated[
        Secret | None, Meta(description="the key that commands call a server with")
    ] = None
    trusted_proxies: Annotated[
        list[str], Meta(description="addresses of proxies whose `X-Forwarded-For` is believed")
    ] = []
    allow_networks: Annotated[
        list[str] | None,
        Meta(
            description="networks that deliveries may reach although they are private; by default "
            "loopback in `dev` and none elsewhere"
        ),
    ] = None
    aws_endpoint_url: Annotated[
        str | None, Meta(description="another endpoint for all AWS services")
    ] = None
    own: dict[type[SystemSettings], SystemSettings] = {}
    """Those of the systems, by their type."""

    def __post_init__(self) -> None:
        self._check_storage()
        if not re.fullmatch(r"[a-z0-9-]{0,20}", self.env):
            raise SettingsError("env: must be at most 20 lower-case letters, digits and hyphens")
        if self.secret_key is not None and len(self.secret_key) < MIN_KEY_CHARACTERS:
            raise SettingsError(f"secret_key: must have at least {MIN_KEY_CHARACTERS} characters")
        for name in ("public_url", "aws_endpoint_url"):
            check_url(name, getattr(self, name))
        for name in ("allow_networks", "trusted_proxies"):
            _check_networks(name, getattr(self, name) or [])

    def of(self, kind: type[S]) -> S:
        """The settings of a system."""
        found = self.own.get(kind)
        return found if isinstance(found, kind) else kind()

    @property
    def table_names(self) -> dict[str, str]:
        """The whole names of tables that a system's settings name, by their declared names."""
        return {k: v for settings in self.own.values() for k, v in settings.table_names.items()}

    def _check_storage(self) -> None:
        if not re.match(r"sqlite:///.|sqlite://:memory:$|dynamodb://", self.store):
            raise SettingsError("store: must be sqlite:///path or dynamodb://region")
        if self.queue != "embedded" and not self.queue.startswith("sqs://"):
            raise SettingsError("queue: must be embedded or sqs://region")
        if self.queue == "embedded" and not self.store.startswith("sqlite:"):
            raise SettingsError(
                "queue: embedded needs a SQLite store; with DynamoDB use sqs://region"
            )
        if self.secret_key is None and not self.store.startswith("sqlite:"):
            raise SettingsError("secret_key: must be set unless the store is a SQLite file")
        if not re.match(r"[a-z0-9]+:", self.blobs):
            raise SettingsError(
                "blobs: must be file:path, s3://bucket or another object store's URL"
            )

    def __repr__(self) -> str:
        return f"Settings(store={self.store!r}, env={self.env!r}, …)"

    @property
    def sqlite_path(self) -> Path | None:
        """The store's file, if it is one."""
        if not self.store.startswith("sqlite:///"):
            return None
        return Path(unquote(self.store.removeprefix("sqlite:///")))

    @property
    def aws_region(self) -> str | None:
        """The region that the store's URL names, or else the queue's: buckets are there, too."""
        for url, scheme in ((self.store, "dynamodb://"), (self.queue, "sqs://")):
            if url.startswith(scheme) and (region := url.removeprefix(scheme)):
                return region
        return None

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
        """The secret key; created if it is neither set nor on disk."""
        return self.secret_key or load_or_create_key(self.key_path or Path())


class Names:
    """Every setting there is, and the type that it belongs to."""

    def __init__(self, kinds: Iterable[type[SystemSettings]]) -> None:
        self.kinds: tuple[type[msgspec.Struct], ...] = (Settings, *kinds)
        self._owners: dict[str, type[msgspec.Struct]] = {}
        self._types: dict[str, Any] = {}
        self.aliases: dict[str, str] = {}
        """Environment variables of other programs that set the same, and the names they set."""
        for kind in self.kinds:
            hints = get_type_hints(kind, include_extras=True)
            for name in kind.__struct_fields__:
                if name == "own":
                    continue
                if name in self._owners:
                    raise DeclarationError(f"two systems have a setting called {name}")
                self._owners[name], self._types[name] = kind, hints[name]
                self.aliases |= dict.fromkeys(_aliases(hints[name]), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def is_list(self, name: str) -> bool:
        return "list[" in str(self._types[name])

    def known(self, name: str, shown: str) -> str:
        """A setting's name without its prefix; SettingsError when there is no such setting."""
        field = name.lower().removeprefix(PREFIX.lower())
        if field in self._owners:
            return field
        close = difflib.get_close_matches(field, self._owners, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SettingsError(f"{shown}: there is no such setting{hint}")

    def convert(self, shown: str, name: str, value: object, *, strict: bool = True) -> Any:
        try:
            found = msgspec.convert(value, self._types[name], strict=strict)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{shown}: {error}") from None
        if (found == "" and name != "env") or (isinstance(found, list) and "" in found):
            raise SettingsError(f"{shown}: must not be empty")
        return found

    def build(self, found: Mapping[str, Any]) -> Settings:
        """The settings of all kinds from values that were converted."""
        own: dict[type[SystemSettings], SystemSettings] = {}
        for kind in self.kinds:
            if issubclass(kind, SystemSettings):
                own[kind] = kind(**{n: found[n] for n in kind.__struct_fields__ if n in found})
        shared = Settings(
            **{n: v for n, v in found.items() if self._owners[n] is Settings}, own=own
        )
        for settings in own.values():
            settings.check(shared)
        return shared


def load_settings(
    kinds: Iterable[type[SystemSettings]],
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    **given: Any,
) -> Settings:
    """Settings from a TOML file, then the environment, then what is given; the last one wins.

    `kinds` are the settings of the systems. Without a file, `waystation.toml` in the working
    directory is read if it is there.
    """
    names = Names(kinds)
    found = _from_file(names, file)
    variables = os.environ if environ is None else environ
    for alias, field in names.aliases.items():
        if text := variables.get(alias, "").strip():
            found[field] = names.convert(alias, field, text, strict=False)
    for name, text in variables.items():
        if name.startswith(PREFIX):
            field = names.known(name, name)
            if not text.strip() and field != "env":
                continue  # empty means not set, except for env
            split = [part.strip() for part in text.split(",") if part.strip()]
            value = split if names.is_list(field) else text
            found[field] = names.convert(name, field, value, strict=False)
    for name, value in given.items():
        if value is not None:
            found[names.known(name, name)] = names.convert(name, name, value)
    return names.build(found)


def _from_file(names: Names, file: Path | None) -> dict[str, Any]:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    fields = {name: names.known(name, f"{path}: {name}") for name in content}
    return {fields[name]: names.convert(name, fields[name], content[name]) for name in content}


def _aliases(hint: Any) -> list[str]:
    extras = [part.extra for part in get_args(hint)[1:] if isinstance(part, Meta) and part.extra]
    return [extra["also"] for extra in extras if "also" in extra]


def check_url(name: str, url: str | None) -> None:
    """Refuse a setting that is not the URL of an HTTP server."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname is not None
    except ValueError:
        good = False
    if not good:
        raise SettingsError(f"{name}: must be a URL that begins with http:// or https://")


def _check_networks(name: str, networks: list[str]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None
