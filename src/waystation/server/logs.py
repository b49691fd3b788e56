"""Logs: one JSON object a line, with secrets and personal data masked."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

from waystation.patterns import masked_fields, redact
from waystation.times import iso

_MAX_TEXT = 8_000


class JsonFormatter(logging.Formatter):
    """Fields given as `extra={"fields": {...}}` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()[:_MAX_TEXT]),
        }
        fields = getattr(record, "fields", None)
        if fields:
            line |= masked_fields(fields)
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info)[-_MAX_TEXT:])
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logs(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
