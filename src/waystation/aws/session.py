"""Credentials, regions and endpoints from botocore's chain; connections shared by the clients."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import aiohttp
import botocore.session
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError

from waystation.errors import AccessRefused, InvalidRequest

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials

_CONNECTIONS = 128
_IDLE_SECONDS = 15.0
"""Shorter than the services keep an idle connection, so that we rarely write to a dead one."""

_STREAMS = ("DYNAMODB_STREAMS", "DYNAMODB")
"""A stand-in for DynamoDB has its streams too."""


class AwsChain:
    """Region, endpoints and credentials, found as every AWS tool finds them."""

    def __init__(self, region: str | None, endpoint_url: str | None = None) -> None:
        self._botocore = botocore.session.get_session()
        found = region or self._botocore.get_config_variable("region")
        if not found:
            raise InvalidRequest(
                "the AWS region is not known: use dynamodb://eu-west-1 or set AWS_DEFAULT_REGION"
            )
        self.region = str(found)
        self._endpoint_url = endpoint_url
        self._credentials: Credentials | None = None

    def given_endpoint(self, service: str) -> str | None:
        """The endpoint that was asked for; AWS_ENDPOINT_URL_SQS and the like name one service's."""
        names = _STREAMS if service == "streams.dynamodb" else (service.upper(),)
        alone = (os.environ.get(f"AWS_ENDPOINT_URL_{name}") for name in names)
        given = next((url for url in alone if url), None)
        return given or self._endpoint_url or os.environ.get("AWS_ENDPOINT_URL")

    def endpoint(self, service: str) -> str:
        """The URL that calls to a service go to."""
        if given := self.given_endpoint(service):
            return given.rstrip("/") + "/"
        resolver = self._botocore.get_component("endpoint_resolver")
        found = resolver.construct_endpoint(service, self.region)
        if not found:
            raise InvalidRequest(f"there is no {service} in {self.region}")
        return f"https://{found['hostname']}/"

    def load_credentials(self) -> Credentials:
        """The credentials of this process. May ask the network, for as long as it takes."""
        held = self._credentials or self._botocore.get_credentials()
        if held is None:
            raise AccessRefused("no AWS credentials were found in the environment")
        self._credentials = held
        return held


class AwsSession(AwsChain):
    """What all clients of one process share. Close it when done."""

    def __init__(self, region: str | None, endpoint_url: str | None = None) -> None:
        super().__init__(region, endpoint_url)
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS)
        self.http = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=["User-Agent"],
        )

    async def credentials(self) -> ReadOnlyCredentials:
        """Credentials that are valid now; refreshing them happens off the event loop."""
        try:
            held = self._credentials
            if held is None:
                held = await asyncio.to_thread(self.load_credentials)
            if isinstance(held, RefreshableCredentials) and held.refresh_needed():
                return await asyncio.to_thread(held.get_frozen_credentials)
            return held.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise AccessRefused(f"AWS credentials could not be obtained: {error}") from error

    async def close(self) -> None:
        await self.http.close()
