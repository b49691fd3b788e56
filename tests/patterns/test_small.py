"""The small shared parts: bounded memory, Slack's signature, cursors."""

from __future__ import annotations

import pytest
from slack_sdk.signature import SignatureVerifier

from waystation.errors import InvalidInput
from waystation.patterns import (
    Cursors,
    Newest,
    Vault,
    listing,
    sender_key,
    slack_signature,
    slack_signed,
)

NOW = 1_700_000_000.0


def test_the_entry_that_was_set_longest_ago_goes_first() -> None:
    kept: Newest[str, int] = Newest(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


def test_slacks_own_signer_and_ours_agree() -> None:
    sdk = SignatureVerifier("secret")
    theirs = sdk.generate_signature(timestamp=str(int(NOW)), body='{"a": 1}')
    assert theirs == slack_signature("secret", str(int(NOW)), b'{"a": 1}')
    assert slack_signed("secret", str(int(NOW)), theirs, b'{"a": 1}', NOW)


@pytest.mark.parametrize(
    ("secret", "stamp", "body", "now"),
    [
        ("other", "1700000000", b"{}", NOW),
        ("", "1700000000", b"{}", NOW),
        ("secret", "1700000000", b"{} ", NOW),
        ("secret", "1700000000", b"{}", NOW + 301),
        ("secret", "1700000000", b"{}", NOW - 301),
        ("secret", "", b"{}", NOW),
        ("secret", "-1700000000", b"{}", NOW),
        ("secret", "1" * 400, b"{}", NOW),
        ("secret", "170000000\N{SUPERSCRIPT ZERO}", b"{}", NOW),
    ],
)
def test_what_slack_did_not_sign_lately_is_refused(
    secret: str, stamp: str, body: bytes, now: float
) -> None:
    good = slack_signature("secret", "1700000000", b"{}")
    assert slack_signed("secret", "1700000000", good, b"{}", NOW)
    assert not slack_signed(secret, stamp, good, body, now)


@pytest.mark.parametrize("signature", ["", "v0=", "v1=x", "\ud800", "v0=é"])
def test_a_signature_that_is_none_is_refused(signature: str) -> None:
    assert not slack_signed("secret", "1700000000", signature, b"{}", NOW)


def test_a_cursor_leads_back_to_its_own_list_only() -> None:
    cursors = Cursors(Vault("k" * 40))
    cursor = cursors.seal("position", "ann's events")
    assert cursors.open(cursor, "ann's events") == "position"
    for bad, scope in [(cursor, "bob's events"), (cursor[:-1], "ann's events"), ("é", "x")]:
        with pytest.raises(InvalidInput):
            cursors.open(bad, scope)


def test_a_page_with_a_cursor_has_more_after_it() -> None:
    assert (listing([1], "x").has_more, listing([1]).has_more) == (True, False)


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("unix:", "unix:"),
        (None, "unknown"),
    ],
)
def test_senders_are_told_apart_by_address_or_network(host: str | None, key: str) -> None:
    assert sender_key(host) == key
