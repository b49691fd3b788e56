"""The `waystation` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from waystation.errors import WaystationError
from waystation.store.cloudformation import template
from waystation.store.tables import scoped_name
from waystation.tables import SYSTEMS, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store import Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 done, 1 failed, 2 usage."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except WaystationError as error:
        print(f"waystation: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has seen enough; leave nothing for the interpreter to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="waystation", description="Where events stop on their way."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    tables = commands.add_parser("tables", help="show every table, or write the template")
    form = tables.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--cloudformation", action="store_true", help="the deployment template")
    tables.set_defaults(run=_tables)
    return parser


def _tables(options: argparse.Namespace) -> None:
    env = os.environ.get("WAYSTATION_ENV", "dev")
    if options.cloudformation:
        print(json.dumps(template(TABLES, env), indent=2))
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
