"""Ids."""

from __future__ import annotations

import re

from waystation.ids import nanoid, new_id, sortable_id


def test_ids_of_things_have_a_prefix_and_sixteen_characters() -> None:
    assert re.fullmatch(r"usr_[\w-]{16}", new_id("usr"))
    assert len({new_id("usr") for _ in range(10_000)}) == 10_000


def test_every_character_can_be_in_an_id() -> None:
    assert len(set(nanoid(10_000))) == 64


def test_sortable_ids_sort_by_time() -> None:
    times = [0.0, 0.001, 1.0, 1_700_000_000.0, 1_700_000_000.001, 4_000_000_000.0]
    ids = [sortable_id(time) for time in times]
    assert ids == sorted(ids)
    assert {len(id_) for id_ in ids} == {21}


def test_sortable_ids_of_one_moment_differ() -> None:
    assert len({sortable_id(1_700_000_000.0) for _ in range(10_000)}) == 10_000
