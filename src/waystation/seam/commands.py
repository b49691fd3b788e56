"""Commands: what a system adds to the command line, and what one call of it can use."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from waystation.errors import SettingsError

if TYPE_CHECKING:
    import argparse

    from waystation.client import ApiClient
    from waystation.settings import Settings

Opened = Callable[["Settings"], AbstractAsyncContextManager[Mapping[str, Any]]]
"""Opens the house without serving it: what its systems provide, by name."""


class Call:
    """One call of a command."""

    def __init__(self, options: argparse.Namespace, settings: Settings, opened: Opened) -> None:
        self.options = options
        self.settings = settings
        self._opened = opened

    def house(self) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Everything that the systems provide, opened here rather than asked of a server."""
        return self._opened(self.settings)

    def client(self) -> ApiClient:
        """The server that `--url` and `--key` name, or the one on this machine."""
        # Imported here so that commands which need no server start without it.
        from waystation.client import ApiClient

        key = self.options.key or self.settings.api_key
        if key is None:
            raise SettingsError("an API key is needed: --key or WAYSTATION_API_KEY")
        host = self.settings.host
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - asked, not bound
        shown = f"[{host}]" if ":" in host else host
        return ApiClient(self.options.url or f"http://{shown}:{self.settings.port}", key)

    def show(self, value: object, text: str) -> None:
        """Print a value as JSON, or the text for people."""
        print(json.dumps(value) if self.options.json else text, flush=True)


Run = Callable[[Call], Awaitable[int | None]]
"""Does what a command says; its exit code, if it is not 0."""


class Commands:
    """Where a system adds its commands: `waystation GROUP COMMAND`."""

    def __init__(self, parsers: Any, shared: argparse.ArgumentParser) -> None:
        self._parsers = parsers
        self._shared = shared

    def group(self, name: str, help: str) -> Group:  # noqa: A002 - argparse's own word
        parsers = self._parsers.add_parser(name, help=help).add_subparsers(
            required=True, metavar="COMMAND"
        )
        return Group(parsers, self._shared)


class Group:
    def __init__(self, parsers: Any, shared: argparse.ArgumentParser) -> None:
        self._parsers = parsers
        self._shared = shared

    def add(
        self,
        name: str,
        run: Run,
        *,
        help: str,  # noqa: A002 - argparse's own word
        calls: bool = False,
    ) -> argparse.ArgumentParser:
        """A command. One that `calls` a server takes its address and a key."""
        parser: argparse.ArgumentParser = self._parsers.add_parser(
            name, parents=[self._shared], help=help
        )
        if calls:
            parser.add_argument("--url", help="the server; by default the one on this machine")
            parser.add_argument("--key", help="an API key; or set WAYSTATION_API_KEY")
        parser.set_defaults(command=run)
        return parser
