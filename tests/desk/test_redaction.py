"""A corpus of sentences with and without personal data: what is missed, and what is masked though
it need not be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.patterns import excerpt, redact

SENTENCES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "data" / "redaction.toml").read_text()
)["sentence"]
UNSEEN = [each for each in SENTENCES if not each["tuned"]]


def flat(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


def survives(secret: str, shown: str) -> bool:
    """Whether five letters or digits in a row are still there: the last four may be."""
    whole, there = flat(secret), flat(shown)
    size = min(5, len(whole))
    return any(whole[n : n + size] in there for n in range(len(whole) - size + 1))


def misses(sentences: list[dict[str, Any]]) -> list[str]:
    return [
        secret
        for each in sentences
        for secret in each["secret"]
        if survives(secret, redact(each["text"]))
    ]


def false_alarms(sentences: list[dict[str, Any]]) -> list[str]:
    plain = [each["text"] for each in sentences if not each["secret"]]
    return [text for text in plain if redact(text) != text]


def test_the_corpus_is_large_enough() -> None:
    with_data = [each for each in SENTENCES if each["secret"]]
    assert len(SENTENCES) >= 200
    assert len(with_data) >= 100
    assert len(SENTENCES) - len(with_data) >= 100
    assert len({each["country"] for each in SENTENCES}) >= 10


def test_what_the_patterns_were_written_with_is_masked_and_no_more() -> None:
    tuned = [each for each in SENTENCES if each["tuned"]]
    assert misses(tuned) == []
    assert false_alarms(tuned) == []


def test_the_figures_of_the_documentation() -> None:
    """Of sentences that nobody looked at while the patterns were written."""
    secrets = sum(len(each["secret"]) for each in UNSEEN)
    plain = sum(not each["secret"] for each in UNSEEN)
    missed, alarms = len(misses(UNSEEN)), len(false_alarms(UNSEEN))
    page = (Path(__file__).parents[2] / "docs" / "desk.md").read_text()
    assert f"{missed} of {secrets} missed, {alarms} of {plain} false alarms" in page


LOCAL = st.from_regex(r"[a-z0-9]{1,12}([._+-][a-z0-9]{1,8})?", fullmatch=True)
HOST = st.from_regex(r"[a-z]{2,10}(-[a-z]{2,6})?\.(com|net|co\.uk|de|example)", fullmatch=True)
EMAILS = st.builds("{}@{}".format, LOCAL, HOST)
PHONES = st.from_regex(
    r"\+[1-9]\d{0,2}[ -]\d{2,3}[ -]\d{3,4}[ -]\d{4}|\(\d{3}\) \d{3}-\d{4}", fullmatch=True
)
ORDERS = st.from_regex(r"(order|Order number|order no\.) ?#?\d{5,10}|#\d{5,10}", fullmatch=True)
TRACKING = st.from_regex(r"1Z[0-9A-Z]{16}|JD\d{18}|[A-Z]{2}\d{9}GB", fullmatch=True)
CARDS = st.sampled_from(["4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005"])
PERSONAL = st.one_of(EMAILS, PHONES, ORDERS, TRACKING, CARDS)
WORDS = st.sampled_from(["hello", "please help", "thanks", "it is about", "and", "for", "(see)"])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Words with personal data between them."""
    secrets = draw(st.lists(PERSONAL, min_size=1, max_size=4))
    parts = [part for secret in secrets for part in (draw(WORDS), secret)]
    return ", ".join([*parts, draw(WORDS)]), secrets


@settings(max_examples=300, deadline=None)
@given(sentences())
def test_personal_data_is_masked_wherever_it_stands(given: tuple[str, list[str]]) -> None:
    text, secrets = given
    shown = redact(text)
    for secret in secrets:
        digits = "".join(c for c in secret if c.isdigit() or "@" in secret)
        assert not survives(digits or secret, shown), (text, shown)


@settings(max_examples=200, deadline=None)
@given(sentences(), st.integers(0, 60))
def test_an_excerpt_never_cuts_through_personal_data(
    given: tuple[str, list[str]], before: int
) -> None:
    text, secrets = given
    shown = excerpt("x" * before + " " + text)
    assert len(shown) <= 80
    for secret in secrets:
        digits = "".join(c for c in secret if c.isdigit() or "@" in secret)
        assert not survives(digits or secret, shown), (text, shown)


@settings(max_examples=200, deadline=None)
@given(sentences())
def test_what_was_masked_is_masked_no_further(given: tuple[str, list[str]]) -> None:
    once = redact(given[0])
    assert redact(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "I am size 12 and he is size 9",
        "it took 2 weeks on its way",
        "a 5 minute walk from the station",
        "the spring 2026 collection",
        "a 4 place setting",
        "version 12.4.1 of the app",
    ],
)
def test_ordinary_numbers_stay_readable(text: str) -> None:
    assert redact(text) == text
