"""Rooms are entered by their doors: what one exports is all that others import."""

from __future__ import annotations

import ast
from pathlib import Path

import waystation

ROOT = Path(waystation.__file__).parent
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def is_door(module: str) -> bool:
    """A package speaks for what is in it; the list of systems reads each one's `system`; and the
    server's modules are the command line's entry points."""
    parts = module.split(".")
    return (ROOT.parent.joinpath(*parts) / "__init__.py").exists() or parts[-1] == "system"


def test_other_rooms_import_what_a_room_exports() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            parts = node.module.split(".")
            if parts[0] != "waystation" or len(parts) < 3 or parts[1] == room:
                continue
            if not is_door(node.module) and (room, parts[1]) != ("cli.py", "server"):
                found.append(f"{path.relative_to(ROOT)}: {node.module}")
    assert found == []
    assert len(ROOMS) > 10


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {module.split(".")[1] for module in found if module.startswith("waystation.")}


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
