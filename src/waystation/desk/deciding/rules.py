"""Rules: a TOML file that says by which phrases an intent is known, whose it is, and what to reply.

Every rule that fits is weighed; of those that fit, the highest level wins, and within it the one
that is most certain.
"""

from __future__ import annotations

import tomllib
from functools import cached_property, lru_cache
from pathlib import Path
from string import Formatter
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.desk.deciding.decisions import UNKNOWN_INTENT, Decision, Message, Name
from waystation.desk.deciding.phrases import Phrases, parsed
from waystation.desk.receiving.envelopes import CHANNELS
from waystation.errors import SettingsError

DEFAULT = Path(__file__).with_name("rules.toml")
NEED_ORDER_NUMBER = "need_order_number"
FIELDS = frozenset({"status", "tracking"})

_STRONG, _USUAL, _WEAK = 0.92, 0.78, 0.55
_MORE = 0.05
_MOST = 0.97
_MOST_PHRASES = 5_000
_UNKNOWN = 0.3

_Phrase = Annotated[str, Meta(min_length=1, max_length=200)]


class Team(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id` is what the vendor calls the team, where that is not its name."""

    id: str | None = None
    title: str | None = None


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an intent is known. Found in `strong`, it is nearly certain; in `usual`, likely; in
    `weak`, a person should look. A phrase in `unless` rules it out."""

    name: Name
    level: Name
    team: Name
    strong: list[_Phrase] = []
    usual: list[_Phrase] = []
    weak: list[_Phrase] = []
    unless: list[_Phrase] = []
    risk: Name | None = None
    tags: list[Name] = []
    reply: Name | None = None


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reply. `{status}` and `{tracking}` are an order's: a template with them needs one."""

    text: Annotated[str, Meta(min_length=1, max_length=4_000)]

    @property
    def fields(self) -> set[str]:
        return {field for _, field, _, _ in Formatter().parse(self.text) if field is not None}


class RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    levels: Annotated[list[Name], Meta(min_length=1)]
    escalations: list[Name] = []
    default_team: Name
    route_at: Annotated[float, Meta(ge=0, le=1)] = 0.60
    uncertain_at: Annotated[float, Meta(ge=0, le=1)] = 0.50
    teams: dict[Name, Team]
    channels: dict[str, Name] = {}
    tag_ids: dict[Name, str] = {}
    intents: list[Intent]
    templates: dict[Name, Template] = {}


class Rules:
    """Decides by rules. It is a decider like any other."""

    def __init__(self, file: RuleFile, phrases: Phrases) -> None:
        self.file = file
        self.teams = set(file.teams)
        self._phrases = phrases
        self._known = [
            (intent, weight)
            for intent in file.intents
            for weight, some in _weighed(intent)
            for _ in some
        ]

    async def __call__(self, message: Message) -> Decision:
        return self.decide(message)

    def decide(self, message: Message) -> Decision:
        found = self._found(message.text)
        level = {name: n for n, name in enumerate(self.file.levels)}
        found.sort(key=lambda each: (level[each[0].level], -each[1]))
        ranked = [each for each in found if each[1] >= self.file.uncertain_at] or found
        if not ranked:
            return self._by_channel(message)
        intent, confidence, reasons = ranked[0]
        escalations = [i for i, c, _ in ranked if i.level in self.file.escalations]
        return Decision(
            intent=intent.name,
            team=intent.team,
            confidence=round(confidence, 2),
            intents=[other.name for other, _, _ in ranked][:20],
            risk_flags=sorted({i.risk for i, _, _ in ranked if i.risk is not None}),
            tags=intent.tags[:5],
            escalated=bool(escalations),
            reply=None if escalations else intent.reply,
            reasons=reasons[:20],
        )

    def _found(self, text: str) -> list[tuple[Intent, float, list[str]]]:
        """Every intent that a text may have, how certain it is, and why."""
        matches: dict[str, list[tuple[float, str]]] = {}
        intents: dict[str, Intent] = {}
        for n in sorted(self._phrases.found(text)):
            intent, weight = self._known[n]
            intents[intent.name] = intent
            matches.setdefault(intent.name, []).append((weight, self._phrases.phrases[n]))
        found = []
        for name, hits in matches.items():
            if any(weight == 0 for weight, _ in hits):
                continue  # something rules it out
            best = max(weight for weight, _ in hits)
            certain = max(best, min(_MOST, best + _MORE * (len(hits) - 1)))
            reasons = [f"{name}: the words “{phrase}”" for _, phrase in sorted(hits, reverse=True)]
            found.append((intents[name], certain, reasons))
        return found

    def _by_channel(self, message: Message) -> Decision:
        """Nothing in the text helps: some channels have teams of their own."""
        team = self.file.channels.get(message.channel)
        if team is None:
            return Decision(
                intent=UNKNOWN_INTENT, confidence=_UNKNOWN, reasons=["no rule fits the text"]
            )
        return Decision(
            intent=UNKNOWN_INTENT,
            team=team,
            confidence=max(self.file.route_at, 0.60),
            intents=[UNKNOWN_INTENT],
            reasons=[f"no rule fits the text, and it came by {message.channel}"],
        )

    @cached_property
    def templates(self) -> dict[str, Template]:
        return dict(self.file.templates)


def _weighed(intent: Intent) -> list[tuple[float, list[str]]]:
    return [
        (_STRONG, intent.strong),
        (_USUAL, intent.usual),
        (_WEAK, intent.weak),
        (0.0, intent.unless),
    ]


def load_rules(path: Path | None = None) -> Rules:
    """The rules in a file; SettingsError that names what is wrong with it."""
    place = path or DEFAULT
    try:
        return Rules(*_read(place.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{place}: {error}") from error


@lru_cache(maxsize=2)
def _read(text: str) -> tuple[RuleFile, Phrases]:
    file = msgspec.convert(tomllib.loads(text), RuleFile)
    _check(file)
    return file, Phrases(p for i in file.intents for _, some in _weighed(i) for p in some)


def _check(file: RuleFile) -> None:
    """Refuse rules that contradict themselves."""
    _known("escalations", file.escalations, file.levels)
    _known("default_team", [file.default_team], file.teams)
    _known("channels", list(file.channels), CHANNELS)
    _known("channels", list(file.channels.values()), file.teams)
    if file.uncertain_at > file.route_at:
        raise ValueError("uncertain_at: must not be above route_at")
    names = [intent.name for intent in file.intents]
    if len(set(names)) != len(names):
        raise ValueError(f"intents: two are called {max(names, key=names.count)}")
    phrases = 0
    for intent in file.intents:
        _known(f"intents.{intent.name}.level", [intent.level], file.levels)
        _known(f"intents.{intent.name}.team", [intent.team], file.teams)
        _known(f"intents.{intent.name}.reply", [intent.reply or ""], [*file.templates, ""])
        for _, some in _weighed(intent):
            phrases += len(some)
            for phrase in some:
                _checked_phrase(intent.name, phrase)
    if phrases > _MOST_PHRASES:
        raise ValueError(f"intents: at most {_MOST_PHRASES} phrases in all")
    for name, template in file.templates.items():
        if strange := template.fields - FIELDS:
            known = ", ".join(sorted(FIELDS))
            raise ValueError(f"templates.{name}: there is no {{{min(strange)}}}, only {known}")


def _checked_phrase(intent: str, phrase: str) -> None:
    try:
        parsed(phrase)
    except ValueError as error:
        raise ValueError(f"intents.{intent}: {error}") from None


def _known(what: str, given: list[str], allowed: object) -> None:
    options = list(allowed)  # type: ignore[call-overload]
    for name in given:
        if name not in options:
            raise ValueError(f"{what}: {name!r} is not one of {', '.join(filter(None, options))}")
