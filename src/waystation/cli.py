"""The `waystation` command."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation.cloudformation import template
from waystation.errors import InvalidInput, WaystationError
from waystation.relay import commands as relay
from waystation.settings import Settings, load_settings
from waystation.store.tables import scoped_name
from waystation.tables import QUEUES, SYSTEMS, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store import Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 done, 1 failed, 2 usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except WaystationError as error:
        print(f"waystation: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:
        # The reader has seen enough; leave nothing for the interpreter to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="waystation", description="Where events stop on their way."
    )
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="the same")
    shared.add_argument("--json", action="store_true", help="for programs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", parents=[shared], help="start everything in one process")
    serve.add_argument("--host", help="the address to listen on")
    serve.add_argument("--port", type=int, help="the port to listen on")
    serve.add_argument("--role", choices=["all", "api", "worker"], default="all")
    serve.set_defaults(run=_serve)

    keys = commands.add_parser("keys", help="API keys").add_subparsers(
        required=True, metavar="COMMAND"
    )
    create = keys.add_parser(
        "create", parents=[shared], help="make a key, and the account if there is none"
    )
    create.add_argument("email")
    create.add_argument("--permissions", choices=["read", "write", "admin"], default="admin")
    create.add_argument("--name", default="made on the command line")
    create.set_defaults(run=_create_key)

    doctor = commands.add_parser(
        "doctor", parents=[shared], help="check settings, store, queue, blobs and clock"
    )
    doctor.set_defaults(run=_doctor)

    tables = commands.add_parser(
        "tables", parents=[shared], help="show every table, or write the template"
    )
    tables.add_argument("--cloudformation", action="store_true", help="the deployment template")
    tables.set_defaults(run=_tables)

    relay.add_parser(commands, shared)
    return parser


def _settings(options: argparse.Namespace, **given: Any) -> Settings:
    return load_settings(options.config, **given)


def _serve(options: argparse.Namespace) -> None:
    # Imported here, as below, so that the small commands start without the server.
    import uvloop

    from waystation.server.logs import configure_logs
    from waystation.server.serve import serve

    settings = _settings(options, host=options.host, port=options.port)
    configure_logs()

    def started(url: str) -> None:
        if options.json:
            print(
                json.dumps({"url": url, "role": options.role, "store": settings.store}), flush=True
            )
            return
        role = "" if options.role == "all" else f" ({options.role})"
        told = [f"Waystation{role} is at {url}", f"  API docs   {url}/docs"]
        told.append(f"  state      {url}/readyz   metrics {url}/metrics")
        told.append(f"  make a key   {_called()} keys create you@example.com")
        told.append(f"  stored in    {settings.store}, environment {settings.env}")
        print("\n".join(told), flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, options.role, started))


def _called() -> str:
    """This command as it was typed."""
    return sys.argv[0] if sys.argv[0].endswith("waystation") else "waystation"


def _create_key(options: argparse.Namespace) -> None:
    asyncio.run(_make_key(options))


async def _make_key(options: argparse.Namespace) -> None:
    from waystation.server.runtime import running

    if not 1 <= len(options.name) <= 100:
        raise InvalidInput("name", "a key's name has 1 to 100 characters")
    async with running(_settings(options)) as runtime:
        user = await runtime.accounts.find_or_open(options.email)
        key, secret = await runtime.accounts.keys.create(
            user.user_id, options.name, options.permissions
        )
    if options.json:
        made = {"id": key.key_id, "key": secret, "account": user.user_id, "email": user.email}
        print(json.dumps(made | {"permissions": key.permissions, "plan": user.plan}, indent=2))
    else:
        print(secret)


def _doctor(options: argparse.Namespace) -> int:
    from waystation.server.doctor import examine

    findings = asyncio.run(examine(options.config))
    if options.json:
        print(json.dumps([finding.shown() for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else "FAIL"
            print(f"{mark}  {finding.name:<9} {finding.detail}")
            if finding.fix:
                print(f"      {'':<9} → {finding.fix}")
    return 0 if all(finding.ok for finding in findings) else 1


def _tables(options: argparse.Namespace) -> None:
    env = _settings(options).env
    if options.cloudformation:
        print(json.dumps(template(TABLES, env, QUEUES), indent=2))
    elif options.json:
        shown = [_described(system, table, env) for system, ts in SYSTEMS.items() for table in ts]
        print(json.dumps(shown, indent=2))
    else:
        for system, tables in SYSTEMS.items():
            for table in tables:
                print(_told(system, table, env))


def _described(system: str, table: Table, env: str) -> dict[str, Any]:
    return {
        "system": system,
        "name": scoped_name(table, env),
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


def _told(system: str, table: Table, env: str) -> str:
    described = _described(system, table, env)
    facts = [f"ttl {table.ttl}"] if table.ttl else []
    facts += [f"indexes {', '.join(table.indexes)}"] if table.indexes else []
    facts += ["stream"] if table.stream else []
    lines = [f"{described['name']}  ({', '.join([system, *facts])})"]
    width = max(len(item["type"]) for item in described["items"])
    lines += [
        f"  {item['type']:<{width}}  {item['pk']}  {item['sk'] or ''}".rstrip()
        for item in described["items"]
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
