"""Rooms are entered by their doors: what one exports is all that others import."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import waystation

ROOT = Path(waystation.__file__).parent
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def is_door(module: str) -> bool:
    """A package speaks for what is in it; the list of systems reads each one's `system`; and the
    server's modules are the command line's entry points."""
    parts = module.split(".")
    return (ROOT.parent.joinpath(*parts) / "__init__.py").exists() or parts[-1] == "system"


def modules(path: Path) -> list[str]:
    """Our own modules that a file imports, in whatever way."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = {alias.name for alias in node.names} - exported(node.module)
            found.append(node.module)
            found += filter(is_module, (f"{node.module}.{name}" for name in inside))
    return [module for module in found if module.startswith("waystation.")]


def exported(module: str) -> set[str]:
    """What a room speaks for, by names that may also be those of modules in it."""
    if not module.startswith("waystation."):
        return set()
    return set(getattr(importlib.import_module(module), "__all__", ()))


def is_module(name: str) -> bool:
    return ROOT.parent.joinpath(*name.split(".")).with_suffix(".py").exists()


def test_other_rooms_import_what_a_room_exports() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        for module in modules(path):
            parts = module.split(".")
            if len(parts) < 3 or parts[1] == room:
                continue
            if not is_door(module) and (room, parts[1]) != ("cli.py", "server"):
                found.append(f"{path.relative_to(ROOT)}: {module}")
    assert found == []
    assert len(ROOMS) > 10


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    return {module.split(".")[1] for module in modules(path)}


def systems() -> set[str]:
    """Whatever has a `system.py`, so that a new one is held to the same."""
    return {path.parent.name for path in ROOT.glob("*/system.py")} - {"seam"}


def test_only_the_list_names_a_system() -> None:
    """Server and command line would have to be changed for every new system otherwise."""
    assert {"accounts", "relay"} < systems()
    for path in [ROOT / "cli.py", ROOT / "settings.py", *(ROOT / "server").glob("*.py")]:
        assert not imports(path) & systems(), path


def test_systems_know_neither_each_other_nor_the_server() -> None:
    for name in systems():
        strange = (systems() - {name, "accounts"}) | {"server", "cli", "systems"}
        for path in (ROOT / name).rglob("*.py"):
            assert not imports(path) & strange, path
