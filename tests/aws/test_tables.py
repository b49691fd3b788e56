"""What creating a table asks of DynamoDB beyond what DynamoDB Local knows."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.contract.model import counters
from tests.support.endpoint import served
from waystation.store import open_store


class Control:
    """Remembers the tables that were created, and what was asked for."""

    def __init__(self) -> None:
        self.tables: set[str] = set()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.Response:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        body = json.loads(await request.read())
        self.asked.append((operation, body))
        status, answer = self.answer(operation, body["TableName"])
        return web.Response(status=status, body=json.dumps(answer).encode())

    def answer(self, operation: str, name: str) -> tuple[int, dict[str, Any]]:
        if operation == "CreateTable":
            self.tables.add(name)
        elif name not in self.tables:
            return 400, {"__type": "com.amazon#ResourceNotFoundException"}
        if operation == "DescribeTable":
            return 200, {"Table": {"TableStatus": "ACTIVE"}}
        return 200, {"TimeToLiveDescription": {}}


async def test_a_table_that_is_created_keeps_backups() -> None:
    control = Control()
    async with (
        served(control.handle) as url,
        await open_store("dynamodb://eu-west-1", [counters], endpoint_url=url) as store,
    ):
        await store.ensure_tables()
    kept = [body for operation, body in control.asked if operation == "UpdateContinuousBackups"]
    assert {body["TableName"] for body in kept} == control.tables
    for body in kept:
        assert body["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
