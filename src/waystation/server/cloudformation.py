"""The deployment template: every table, every queue and the bucket as CloudFormation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.queues import RETENTION_SECONDS
from waystation.queues.sqs import FIFO
from waystation.store import scoped_name
from waystation.store.dynamodb import definition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from waystation.queues import QueueSpec
    from waystation.store import Table


def template(
    tables: Iterable[Table],
    env: str,
    queues: Sequence[QueueSpec] = (),
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A template that creates what one environment needs, and keeps its data if it is deleted."""
    resources = {
        _logical_name(table.name, "Table"): _resource(table, scoped_name(table, env, names))
        for table in tables
    }
    outputs: dict[str, Any] = {
        f"{name}Stream": {"Value": {"Fn::GetAtt": [name, "StreamArn"]}}
        for name, resource in resources.items()
        if "StreamSpecification" in resource["Properties"]
    }
    for spec in queues:
        resources |= _queue(spec, env)
    resources["BlobsBucket"] = _BUCKET
    outputs["Blobs"] = {"Value": {"Ref": "BlobsBucket"}}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Waystation, environment {env}",
        "Resources": resources,
        "Outputs": outputs,
    }


def _resource(table: Table, name: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "TableName": name,
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


def _queue(spec: QueueSpec, env: str) -> dict[str, Any]:
    """A queue and its dead letters."""
    suffix = ".fifo" if spec.ordered else ""
    fifo = {**FIFO, "FifoQueue": True} if spec.ordered else {}
    shared = {**fifo, "MessageRetentionPeriod": RETENTION_SECONDS, "SqsManagedSseEnabled": True}
    name = _logical_name(spec.name, "Queue")
    dead = _logical_name(spec.name, "DeadLetters")
    return {
        dead: {
            "Type": "AWS::SQS::Queue",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": {"QueueName": f"{spec.scoped(env)}-dead{suffix}", **shared},
        },
        name: {
            "Type": "AWS::SQS::Queue",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": {
                "QueueName": spec.scoped(env) + suffix,
                "VisibilityTimeout": spec.visibility,
                "RedrivePolicy": {
                    "deadLetterTargetArn": {"Fn::GetAtt": [dead, "Arn"]},
                    "maxReceiveCount": spec.max_receives,
                },
                **shared,
            },
        },
    }


_BUCKET: dict[str, Any] = {
    "Type": "AWS::S3::Bucket",
    "DeletionPolicy": "Retain",
    "UpdateReplacePolicy": "Retain",
    "Properties": {
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    },
}
"""Without a name of its own: bucket names are everybody's. The output tells which it is."""


def _logical_name(name: str, kind: str) -> str:
    parts = name.replace("_", "-").split("-")
    return "".join(part.capitalize() for part in parts) + kind
