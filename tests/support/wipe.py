"""Empties tables of DynamoDB Local, which is much faster than creating them anew for each test."""

from __future__ import annotations

from typing import Any

import boto3


def emptied(url: str, env: str) -> None:
    """Remove every row of an environment's tables."""
    client = boto3.client("dynamodb", endpoint_url=url, region_name="eu-west-1")
    try:
        for name in _names(client, env):
            _empty(client, name)
    finally:
        client.close()


def _names(client: Any, env: str) -> list[str]:
    pages = client.get_paginator("list_tables").paginate(ExclusiveStartTableName=f"{env}-")
    return [name for page in pages for name in page["TableNames"] if name.startswith(f"{env}-")]


def _empty(client: Any, name: str) -> None:
    schema = client.describe_table(TableName=name)["Table"]["KeySchema"]
    keys = [part["AttributeName"] for part in schema]
    names = {f"#{n}": key for n, key in enumerate(keys)}
    for page in client.get_paginator("scan").paginate(
        TableName=name, ProjectionExpression=", ".join(names), ExpressionAttributeNames=names
    ):
        rows = page["Items"]
        for at in range(0, len(rows), 25):
            requests = [{"DeleteRequest": {"Key": row}} for row in rows[at : at + 25]]
            client.batch_write_item(RequestItems={name: requests})
