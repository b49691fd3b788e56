"""The deployment template: every table as CloudFormation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.store.dynamodb.tables import definition
from waystation.store.tables import scoped_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.store.tables import Table


def template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """A template that creates the tables of one environment and keeps them if it is deleted."""
    resources = {_logical_name(table): _resource(table, env) for table in tables}
    outputs = {
        f"{name}Stream": {"Value": {"Fn::GetAtt": [name, "StreamArn"]}}
        for name, resource in resources.items()
        if "StreamSpecification" in resource["Properties"]
    }
    made: dict[str, Any] = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Waystation tables, environment {env}",
        "Resources": resources,
    }
    if outputs:
        made["Outputs"] = outputs
    return made


def _resource(table: Table, env: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "TableName": scoped_name(table, env),
        **definition(table),
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    }
    if table.ttl is not None:
        properties["TimeToLiveSpecification"] = {"AttributeName": table.ttl, "Enabled": True}
    return {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }


def _logical_name(table: Table) -> str:
    parts = table.name.replace("_", "-").split("-")
    return "".join(part.capitalize() for part in parts) + "Table"
