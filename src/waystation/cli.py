"""The `waystation` command."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation import __version__
from waystation.errors import WaystationError
from waystation.seam import Call, Commands, queues_of, settings_of, tables_of
from waystation.settings import Settings, load_settings
from waystation.store import scoped_name
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from waystation.seam import System
    from waystation.store import Table


def main(arguments: Sequence[str] | None = None, systems: Sequence[System] = SYSTEMS) -> int:
    """Run the command: 0 done, 1 failed, 2 usage."""
    options = _parser(systems).parse_args(arguments)
    try:
        return _run(options, systems)
    except WaystationError as error:
        field = getattr(error, "field", None)
        print(f"waystation: {f'{field}: ' if field else ''}{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:
        # The reader has seen enough; leave nothing for the interpreter to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(options: argparse.Namespace, systems: Sequence[System]) -> int:
    """Our own commands are plain functions; those of systems are given a `Call`."""
    if "command" not in options:
        return int(options.run(options, systems) or 0)

    @asynccontextmanager
    async def opened(settings: Settings) -> AsyncIterator[Mapping[str, Any]]:
        # Imported here, as below, so that the small commands start without the server.
        from waystation.server.runtime import running

        async with running(settings, systems) as runtime:
            yield runtime.provided

    call = Call(options, load_settings(settings_of(systems), options.config), opened)

    async def work() -> int:
        return await options.command(call) or 0

    return asyncio.run(work())


def _parser(systems: Sequence[System]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="waystation", description="Where events stop on their way."
    )
    parser.add_argument("--version", action="version", version=f"waystation {__version__}")
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="a settings file")
    shared.add_argument("--json", action="store_true", help="print JSON, for programs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", parents=[shared], help="start everything in one process")
    serve.add_argument("--host", help="the address to listen on")
    serve.add_argument("--port", type=int, help="the port to listen on")
    serve.add_argument(
        "--role",
        choices=["all", "api", "worker"],
        default="all",
        help="answer requests, do the background work, or both",
    )
    serve.add_argument(
        "--processes", type=_count, default=1, help="how many processes share the port and the file"
    )
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser(
        "doctor", parents=[shared], help="check settings, store, queue, blobs and clock"
    )
    doctor.set_defaults(run=_doctor)

    tables = commands.add_parser(
        "tables", parents=[shared], help="show every table, or write the template"
    )
    tables.add_argument("--cloudformation", action="store_true", help="write the AWS template")
    tables.set_defaults(run=_tables)

    for system in systems:
        if system.commands is not None:
            system.commands(Commands(commands, shared))
    return parser


def _serve(options: argparse.Namespace, systems: Sequence[System]) -> int:
    from waystation.server.logs import configure_logs
    from waystation.server.serve import serve
    from waystation.server.several import run, serve_with_several

    settings = load_settings(
        settings_of(systems), options.config, host=options.host, port=options.port
    )
    configure_logs()

    def started(url: str) -> None:
        if options.json:
            greeting = json.dumps({"url": url, "role": options.role, "store": settings.store})
        else:
            role = "" if options.role == "all" else f" ({options.role})"
            lines = [f"Waystation{role} is at {url}", f"  API docs   {url}/docs"]
            lines.append(f"  state      {url}/readyz   metrics {url}/metrics")
            lines.append(f"  new key    {_typed()} keys create you@example.com")
            lines.append(f"  stored in  {settings.store}, environment {settings.env}")
            greeting = "\n".join(lines)
        print(greeting, flush=True)

    if options.processes > 1:
        return serve_with_several(settings, options.role, options.processes, started, systems)
    run(serve(settings, options.role, started, systems))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("must be a number from 1 to 64")
    return int(text)


def _typed() -> str:
    """This command as it was typed."""
    return sys.argv[0] if sys.argv[0].endswith("waystation") else "waystation"


def _doctor(options: argparse.Namespace, systems: Sequence[System]) -> int:
    from waystation.server.doctor import examine

    findings = asyncio.run(examine(options.config, systems))
    if options.json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else "FAIL"
            print(f"{mark}  {finding.name:<9} {finding.detail}")
            if finding.fix:
                print(f"      {'':<9} → {finding.fix}")
    return 0 if all(finding.ok for finding in findings) else 1


def _tables(options: argparse.Namespace, systems: Sequence[System]) -> None:
    settings = load_settings(settings_of(systems), options.config)
    env, names = settings.env, settings.table_names
    if options.cloudformation:
        from waystation.server.cloudformation import template

        print(json.dumps(template(tables_of(systems), env, queues_of(systems), names), indent=2))
        return
    described = [
        _described(system.name, table, scoped_name(table, env, names))
        for system in systems
        for table in system.tables
    ]
    if options.json:
        print(json.dumps(described, indent=2))
    else:
        print("\n".join(map(_table_text, described)))


def _described(system: str, table: Table, name: str) -> dict[str, Any]:
    return {
        "system": system,
        "name": name,
        "pk": table.pk.name,
        "sk": table.sk.name if table.sk else None,
        "indexes": list(table.indexes),
        "ttl": table.ttl,
        "stream": table.stream,
        "items": [
            {
                "type": spec.item.__name__,
                "pk": spec.pk.text,
                "sk": spec.sk.text if spec.sk else None,
            }
            for spec in table.specs
        ],
    }


def _table_text(table: dict[str, Any]) -> str:
    facts = [f"ttl {table['ttl']}"] if table["ttl"] else []
    facts += [f"indexes {', '.join(table['indexes'])}"] if table["indexes"] else []
    facts += ["stream"] if table["stream"] else []
    lines = [f"{table['name']}  ({', '.join([table['system'], *facts])})"]
    width = max(len(item["type"]) for item in table["items"])
    lines += [
        f"  {item['type']:<{width}}  {item['pk']}  {item['sk'] or ''}".rstrip()
        for item in table["items"]
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
