"""What a decider is worth: precision and recall for each intent, and what is taken for what."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.desk.deciding.decisions import Message
from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.desk.deciding.decisions import Decider


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """A message and what it is about."""

    text: str
    intent: str
    channel: str = "unknown"


class IntentScore(msgspec.Struct, frozen=True, kw_only=True):
    """Of what was decided, how much was right; of what there was, how much was found."""

    intent: str
    messages: int
    precision: float | None
    recall: float | None


class Confusion(msgspec.Struct, frozen=True, kw_only=True):
    intent: str
    decided: str
    count: int


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    accuracy: float
    intents: list[IntentScore]
    confusions: list[Confusion]


async def evaluate(decider: Decider, messages: list[Labelled]) -> Evaluation:
    """Let a decider decide on messages whose intent is known."""
    pairs: Counter[tuple[str, str]] = Counter()
    for message in messages:
        decision = await decider(Message(text=message.text, channel=message.channel))
        pairs[message.intent, decision.intent] += 1
    names = sorted({name for pair in pairs for name in pair})
    right = sum(count for (wanted, decided), count in pairs.items() if wanted == decided)
    wrong = [
        Confusion(intent=wanted, decided=decided, count=count)
        for (wanted, decided), count in pairs.most_common()
        if wanted != decided
    ]
    return Evaluation(
        messages=len(messages),
        accuracy=round(right / len(messages), 4),
        intents=[_score(name, pairs) for name in names],
        confusions=wrong,
    )


def _score(name: str, pairs: Counter[tuple[str, str]]) -> IntentScore:
    labelled = sum(count for (wanted, _), count in pairs.items() if wanted == name)
    decided = sum(count for (_, given), count in pairs.items() if given == name)
    both = pairs[name, name]
    return IntentScore(
        intent=name,
        messages=labelled,
        precision=round(both / decided, 4) if decided else None,
        recall=round(both / labelled, 4) if labelled else None,
    )


def read_labelled(path: Path) -> list[Labelled]:
    """Messages from lines of JSON, or from a CSV file with the columns text and intent."""
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", f"{path} cannot be read: {error}") from None
    rows: list[Any] = []
    if path.suffix.lower() == ".csv":
        rows = list(csv.DictReader(io.StringIO(content)))
    else:
        for n, line in enumerate(content.splitlines(), 1):
            if line.strip():
                rows.append(_line(line, n))
    if not rows:
        raise InvalidInput("file", f"{path} has no messages")
    return [_labelled(row, n) for n, row in enumerate(rows, 1)]


def _line(line: str, n: int) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput("file", f"line {n} is not JSON") from None


def _labelled(row: Any, n: int) -> Labelled:
    try:
        return msgspec.convert(row, Labelled)
    except msgspec.ValidationError as error:
        raise InvalidInput("file", f"message {n}: {error}") from None
