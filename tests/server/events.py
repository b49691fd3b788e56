"""Events as AWS documents them, for the Lambda handlers."""

from __future__ import annotations

import json
from typing import Any


def http_event(
    method: str, path: str, body: str | None = None, *, stage: str = "$default", **headers: str
) -> dict[str, Any]:
    """A request in payload format 2.0."""
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "limit=5",
        "cookies": ["a=1", "b=2"],
        "headers": {
            "accept": "*/*",
            "host": "abc123.execute-api.eu-west-1.amazonaws.com",
            "x-forwarded-for": "203.0.113.7",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
            **shown,
        },
        "queryStringParameters": {"limit": "5"},
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "abc123",
            "domainName": "abc123.execute-api.eu-west-1.amazonaws.com",
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "203.0.113.7",
                "userAgent": "curl/8.5.0",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": "$default",
            "stage": stage,
            "time": "16/Nov/2026:00:00:00 +0000",
            "timeEpoch": 1794787200000,
        },
        "body": body,
        "isBase64Encoded": False,
    }


def sqs_record(
    n: int, group: str | None = None, queue: str = "dev-jobs", body: object = None
) -> dict[str, Any]:
    attributes = {
        "ApproximateReceiveCount": "2",
        "SentTimestamp": "1794787200000",
        "SenderId": "AIDAEXAMPLE",
        "ApproximateFirstReceiveTimestamp": "1794787200001",
    }
    if group is not None:
        attributes |= {
            "MessageGroupId": group,
            "MessageDeduplicationId": str(n),
            "SequenceNumber": "18849496460467696128",
        }
        queue += ".fifo"
    return {
        "messageId": f"0000-{n}",
        "receiptHandle": "AQEBexample",
        "body": json.dumps(n if body is None else body),
        "attributes": attributes,
        "messageAttributes": {
            "waystation-id": {
                "stringValue": f"id-{n}",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "String",
            }
        },
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:eu-west-1:123456789012:{queue}",
        "awsRegion": "eu-west-1",
    }


def stream_record(
    n: int,
    *,
    by_ttl: bool = False,
    table: str = "dev-things",
    image: dict[str, Any] | None = None,
) -> dict[str, Any]:
    keys = {"PK": {"S": "OWNER#ann"}, "SK": {"S": f"THING#{n}"}}
    image = image or {**keys, "owner": {"S": "ann"}, "thingId": {"S": str(n)}}
    record: dict[str, Any] = {
        "eventID": f"event-{n}",
        "eventName": "REMOVE" if by_ttl else "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "eu-west-1",
        "dynamodb": {
            "ApproximateCreationDateTime": 1794787200.0,
            "Keys": keys,
            "OldImage" if by_ttl else "NewImage": image,
            "SequenceNumber": str(100 + n),
            "SizeBytes": 26,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
        "eventSourceARN": f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}"
        "/stream/2026-11-16T00:00:00.000",
    }
    if by_ttl:
        record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    return record
