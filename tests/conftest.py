"""Fixtures for every test."""

from __future__ import annotations

import gc
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import dynamodb_local, moto_server, wipe
from tests.support.parts import missing
from tests.support.site import Site, site
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def pytest_configure() -> None:
    """Each test opens a whole house and leaves it to the collector, which would otherwise look
    through everything that stays again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _aws_credentials() -> Iterator[None]:
    """Credentials that open nothing, and a chain that asks nobody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "local")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        patch.delenv("AWS_PROFILE", raising=False)
        yield


def _dynamodb_local() -> Iterator[str]:
    try:
        with dynamodb_local.running() as url:
            yield url
    except dynamodb_local.Unavailable as reason:
        missing("DynamoDB Local", str(reason))


@pytest.fixture(scope="session")
def dynamodb_url() -> Iterator[str]:
    """The endpoint of a DynamoDB Local that lives as long as the test run."""
    yield from _dynamodb_local()


@pytest.fixture
def new_dynamodb_url() -> Iterator[str]:
    """One to itself: adding an index never ends in one that already has tables with a TTL."""
    yield from _dynamodb_local()


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The endpoint of a moto server, for SQS and S3."""
    with moto_server.running() as url:
        yield url


@pytest.fixture(scope="session")
def shared_env() -> str:
    """An environment whose tables many tests of a worker use, one after the other."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def shared_aws(
    dynamodb_url: str, moto_url: str, shared_env: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The settings of an installation on AWS, which is emptied after each test: that is quicker
    than creating its tables anew."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    try:
        yield {
            "store": "dynamodb://eu-west-1",
            "queue": "sqs://eu-west-1",
            "aws_endpoint_url": moto_url,
            "env": shared_env,
            "allow_networks": ["127.0.0.0/8"],
        }
    finally:
        wipe.emptied(dynamodb_url, shared_env)
        moto_server.emptied(shared_env)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Site]:
    """The whole product in memory, on a real socket."""
    async with site(clock) as running:
        yield running
