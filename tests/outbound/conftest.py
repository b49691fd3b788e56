"""The client on both event loops: asyncio's own, and the one that the server runs on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests.outbound.servers import Authority
from waystation.outbound import Guard, Outbound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    opened = Outbound(Guard(["127.0.0.0/8", "::1/128"]))
    yield opened
    await opened.close()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority that clients opened from now on trust."""
    opened = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(opened.file))
    return opened
