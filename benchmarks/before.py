"""An earlier state of this repository, checked out beside it, for comparisons within one run."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The folder of that commit's packages."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "before"
        _git("worktree", "add", "--detach", str(where), commit)
        try:
            yield where / "src"
        finally:
            _git("worktree", "remove", "--force", str(where))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)
