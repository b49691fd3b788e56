"""Parts that a test cannot do without: found, or the test is skipped by name.

With CI=true a missing part is a failure: nothing may go untested unnoticed.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(part: str, reason: str) -> NoReturn:
    """Skip the test because a part cannot be had; fail it on CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{part} is missing: {reason}", pytrace=False)
    pytest.skip(f"{part} is missing: {reason}")
