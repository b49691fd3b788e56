"""Phrases as a support lead writes them, found in text by whole words.

`cancel my order` is these words in this order. `refund*` is any word that begins so, `cancel/stop`
is either, and `...` is up to four words of whatever kind. "late" is never found in "chocolate".
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_WORDS = 1_500
"""Words of a text that are looked at: more than fit into the characters that are."""

_GAP = "..."
_LONGEST_GAP = 4
_LONGEST_PHRASE = 12
_STEM = 2
_APOSTROPHES = re.compile(r"(?<=\w)['\u2018\u2019`\u00b4](?=\w)")
_OTHER = re.compile(r"[\W_]+")


class _Step(NamedTuple):
    """One word of a phrase, and how many others may stand before it."""

    words: frozenset[str]
    beginnings: tuple[str, ...]
    gap: int = 0

    def fits(self, word: str) -> bool:
        return word in self.words or word.startswith(self.beginnings)


def words(text: str) -> list[str]:
    """The words of a text as phrases are compared with them: small letters, no accents."""
    plain = _APOSTROPHES.sub("", text.casefold())
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", plain)
        plain = "".join(c for c in plain if not unicodedata.combining(c))
    return _OTHER.sub(" ", plain).split()[:MOST_WORDS]


class Phrases:
    """Many phrases. A text is compared with those whose rarest word is in it."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = list(phrases)
        self._steps = [parsed(phrase) for phrase in self.phrases]
        self._by_word: dict[str, list[int]] = {}
        self._by_stem: dict[str, list[tuple[str, int]]] = {}
        common = Counter(word for steps in self._steps for step in steps for word in step.words)
        for n, steps in enumerate(self._steps):
            rarest = min(steps, key=lambda step: sum(common[word] for word in step.words))
            for word in rarest.words:
                self._by_word.setdefault(word, []).append(n)
            for beginning in rarest.beginnings:
                self._by_stem.setdefault(beginning[:_STEM], []).append((beginning, n))

    def found(self, text: str) -> set[int]:
        """The numbers of the phrases that are in a text."""
        there = words(text)
        places: dict[str, list[int]] = {}
        for at, word in enumerate(there):
            places.setdefault(word, []).append(at)
        return {n for n in self._possible(places) if self._is_in(self._steps[n], there, places)}

    def _possible(self, places: Iterable[str]) -> set[int]:
        """The phrases whose rarest word is there."""
        found: set[int] = set()
        for word in places:
            found.update(self._by_word.get(word, ()))
            by_stem = self._by_stem.get(word[:_STEM], ())
            found.update(n for beginning, n in by_stem if word.startswith(beginning))
        return found

    def _is_in(
        self, steps: Sequence[_Step], there: Sequence[str], places: dict[str, list[int]]
    ) -> bool:
        first, *rest = steps
        begins = [word for word in first.words if word in places]
        if first.beginnings:
            begins += [word for word in places if word.startswith(first.beginnings)]
        return any(_goes_on(rest, there, at + 1) for word in begins for at in places[word])


def _goes_on(steps: Sequence[_Step], there: Sequence[str], at: int) -> bool:
    """Whether the words from here on fit the rest of a phrase. Places are followed all at once, so
    that gaps do not multiply."""
    places = {at}
    for step in steps:
        ends = len(there)
        places = {
            n + 1
            for start in places
            for n in range(start, min(start + step.gap + 1, ends))
            if step.fits(there[n])
        }
        if not places:
            return False
    return True


def parsed(phrase: str) -> list[_Step]:
    """A phrase as steps; ValueError when it cannot be read."""
    parts = phrase.split()
    if not parts or len(parts) > _LONGEST_PHRASE or _GAP in (parts[0], parts[-1]):
        raise ValueError(f"{phrase!r}: a phrase has 1 to {_LONGEST_PHRASE} words, and gaps inside")
    steps, gap = [], 0
    for part in parts:
        if part == _GAP:
            gap = _LONGEST_GAP
            continue
        whole, beginnings = set(), []
        for option in part.split("/"):
            word = _one_word(option.removesuffix("*"), phrase)
            if option.endswith("*"):
                if len(word) < _STEM:
                    raise ValueError(f"{phrase!r}: {option!r} is too short to begin words")
                beginnings.append(word)
            else:
                whole.add(word)
        steps.append(_Step(frozenset(whole), tuple(beginnings), gap))
        gap = 0
    return steps


def _one_word(given: str, phrase: str) -> str:
    found = words(given)
    if len(found) != 1:
        raise ValueError(f"{phrase!r}: {given!r} is not a word")
    return found[0]
