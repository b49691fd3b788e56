"""`waystation keys create`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from waystation.seam import Call, Commands


def add_commands(commands: Commands) -> None:
    keys = commands.group("keys", "API keys")
    create = keys.add(
        "create", create_key, help="create a key, and an operator's account if there is none"
    )
    create.add_argument("email", help="whose account the key is for")
    create.add_argument(
        "--permissions",
        choices=["read", "write", "admin"],
        default="admin",
        help="what the key may do; admin by default",
    )
    create.add_argument(
        "--name", default="created on the command line", help="what the key is listed as"
    )


async def create_key(call: Call) -> None:
    options = call.options
    if not 1 <= len(options.name) <= 100:
        raise InvalidInput("name", "a key's name must have 1 to 100 characters")
    file = call.settings.sqlite_path
    is_new = file is not None and not file.exists()
    async with call.house() as house:
        accounts = house["accounts"]
        user = await accounts.find_or_open(options.email)
        key, secret = await accounts.keys.create(user.user_id, options.name, options.permissions)
    created = {
        "id": key.key_id,
        "key": secret,
        "account": user.user_id,
        "email": user.email,
        "permissions": key.permissions,
        "plan": user.plan,
        "role": user.known_role,
    }
    print(f"in {call.settings.store}, environment {call.settings.env}", file=sys.stderr)
    if is_new:
        print(
            "this is a new database: a server that uses another one does not know this key",
            file=sys.stderr,
        )
    call.show(created, secret)
