"""Fixtures of the attacks."""

from __future__ import annotations

from tests.relay.conftest import hub, receiver

__all__ = ["hub", "receiver"]
