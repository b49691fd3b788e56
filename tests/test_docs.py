"""Every example in the README and the docs runs, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.dynamodb_local import free_port
from tests.support.parts import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SERVERS = ("waystation serve", "python -u -m http.server")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text()) if name == language]


def name(page: Path) -> str:
    return page.name


WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
WITH_CONSOLE = [page for page in PAGES if blocks(page, "console")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page are one program, run where it can leave files."""
    program = tmp_path / "example.py"
    program.write_text("\n\n".join(blocks(page, "python")))
    ran = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("page", WITH_CONSOLE, ids=name)
def test_the_commands_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    """All commands of a page run in one shell, in a folder where `make run` has been, and a server
    that it starts stays until the end. The shell of whoever reads the README does not know the
    `waystation` command; that of whoever goes on to the docs has done what the README says.

    A line of three dots stands for any lines, and … within a line for any text.
    """
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    with ExitStack() as running:
        port, other = str(free_port()), str(free_port())
        shell = running.enter_context(Shell.started(tmp_path))
        if page.name != "README.md":
            shell.run(path_command())
        for block in blocks(page, "console"):
            shown = block.replace("8080", port).replace("8099", other)
            for part in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                if command.startswith(SERVERS):
                    printed = running.enter_context(served(command, tmp_path, expected, port))
                else:
                    printed = shell.run(command)
                assert re.fullmatch(pattern(expected), printed), (command, printed)


def path_command() -> str:
    """How the README puts our command on the path."""
    shown = "".join(blocks(ROOT / "README.md", "console"))
    [command] = re.findall(r"^\$ (PATH=.*)$", shown, flags=re.MULTILINE)
    return str(command)


class Shell:
    """A shell as a newcomer has it, into which commands are typed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, where: Path) -> Iterator[Shell]:
        ours = str(Path(sys.executable).parent)
        path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != ours)
        process = subprocess.Popen(
            ["sh"],
            cwd=where,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield cls(process)
        finally:
            process.kill()
            process.communicate()

    def run(self, command: str) -> str:
        if command.startswith("curl") and not shutil.which("curl"):
            missing("curl", "the tour uses it")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = f"end of {uuid.uuid4().hex}:"
        self._process.stdin.write(f"{command}\nprintf '\\n{end} %s\\n' $?\n")
        self._process.stdin.flush()
        printed = ""
        while not (line := self._process.stdout.readline()).startswith(end):
            assert line, f"the shell ended at {command}"
            printed += line
        assert line == f"{end} 0\n", (command, printed)
        printed = printed.removesuffix("\n")
        return printed if printed.endswith("\n") or not printed else printed + "\n"


@contextmanager
def served(command: str, where: Path, expected: str, port: str) -> Iterator[str]:
    """Start a server; what it prints, as far as the page shows it."""
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        cwd=where,
        env={**environment(), "WAYSTATION_PORT": port},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield "".join(process.stdout.readline() for _ in expected.splitlines())
    finally:
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


def pattern(expected: str) -> str:
    lines = (".*".join(map(re.escape, line.split("…"))) for line in expected.splitlines())
    return "".join("(?:.*\n)*" if line == re.escape("...") else line + "\n" for line in lines)


def test_the_readme_shows_the_two_commands() -> None:
    shown = "\n".join(blocks(ROOT / "README.md", "sh"))
    assert "make run" in shown
    assert "make test" in shown


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
