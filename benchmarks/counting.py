"""`waystation` with its calls to AWS counted: how many of each, and the units they took.

Stands in for the command in a process of its own, and writes what it has counted into the file that
`COUNTS` names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from waystation.aws.client import AwsClient
from waystation.cli import main

_COUNTED = {
    *("GetItem", "BatchGetItem", "Query", "Scan", "PutItem", "UpdateItem", "DeleteItem"),
    *("BatchWriteItem", "TransactWriteItems"),
}
_READS = {"GetItem", "BatchGetItem", "Query", "Scan"}

counts: Counter[str] = Counter()
_call = AwsClient.call


async def counted(self: AwsClient, operation: str, request: Any, **named: Any) -> bytes:
    if operation in _COUNTED:
        request = {**request, "ReturnConsumedCapacity": "TOTAL"}
    answer = await _call(self, operation, request, **named)
    counts[operation] += 1
    if operation in _COUNTED:
        used = json.loads(answer).get("ConsumedCapacity") or []
        units = sum(each["CapacityUnits"] for each in (used if isinstance(used, list) else [used]))
        counts["read units" if operation in _READS else "write units"] += units
    return answer


def _keep_writing(file: Path) -> None:
    while True:
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(counts))
        partial.replace(file)
        time.sleep(0.1)


if __name__ == "__main__":
    if "COUNTS" in os.environ:
        AwsClient.call = counted  # type: ignore[method-assign]
        threading.Thread(
            target=_keep_writing, args=(Path(os.environ["COUNTS"]),), daemon=True
        ).start()
    sys.exit(main())
