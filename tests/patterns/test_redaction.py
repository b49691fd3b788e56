"""What is masked, and what stays readable."""

from __future__ import annotations

import time

import pytest

from waystation.patterns import excerpt, masked_fields, redact


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to ann.o'hara+shop@mail.example.co.uk now", "write to ***@*** now"),
        ("where is #12345?", "where is #***2345?"),
        ("My order number is 12345.", "My order number is ***2345."),
        ("order no. A-778812 is late", "order no. ***8812 is late"),
        ("order: 1005", "order: ***"),
        ("#1234567890", "#***7890"),
        ("call (555) 010-1234", "call ***-***-1234"),
        ("call 555.010.1234 today", "call ***-***-1234 today"),
        ("ring +44 20 7946 0958", "ring ***-***-0958"),
        ("card 4111 1111 1111 1111 thanks", "card *** thanks"),
        ("card 4111-1111-1111-1111", "card ***"),
        ("5555555555554444", "***"),
        ("4111111111111111 123", "***"),
        ("card 4111 1111 1111 1111 12/27", "card ***/27"),
        ("mistyped 4111 1111 1111 1112", "mistyped ***"),
        ("FedEx sent 61299998820821171811", "FedEx sent ***"),
        ("GM60511234500000001", "***"),
        ("1Z 999 AA1 01 2345 6784", "***"),
        ("Order #: 12345", "Order #: ***2345"),
        ("my order (12345)", "my order (***2345)"),
        ("orders 12345 and 12346", "orders ***2345 and ***2346"),
        ("order number is\n12345", "order number is\n***2345"),
        ("555-010-1234x12", "***-***-1234"),
        ("tel.555-010-1234", "tel.***-***-1234"),
        ("555\u2011010\u20111234", "***-***-1234"),
        ("2026-11-16, 555 0101", "2026-11-16, ***-***-0101"),
        ("ann@b\u00fccher.de", "***@***"),
        ("www.fedex.com/fedextrack/?trknbr=123", "***"),
        ("it is 1Z999AA10123456784", "it is ***"),
        ("it is 9400 1000 0000 0000 0000 00", "it is ***"),
        ("FedEx 123456789012", "FedEx ***"),
        ("tracking number is 1234567890", "tracking number is ***"),
        ("DHL: JD014600003889999999", "DHL: ***"),
        ("RR123456785GB", "***"),
        ("2024-01-02 4111 1111 1111 1111", "2024-01-02 ***"),
        ("see https://www.ups.com/track?num=1Z9", "see ***"),
        ("see https://shop.example/tracking/abc now", "see *** now"),
        ("to 221B Baker Street, Flat 3", "to ***"),
        ("at 12 Main St. Austin TX 73301", "at *** Austin ***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("ws_live_abcDEF123456", "***"),
        ("whsec_abcDEF123456/+=", "***"),
        ("xoxb-1234-5678-abcd", "***"),
    ],
)
def test_what_is_masked(text: str, masked: str) -> None:
    assert redact(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "This is not what I ordered",
        "I ordered two shirts in size 12",
        "My chocolate charger arrived late",
        "2026-11-16 took 12.5 ms",
        "evt_V1StGXR8Z5jdHi6B",
        "it costs 19.99",
        "in order to see it",
        "at 1719859200000",
        "from 2024-01-02 2024-01-03 on",
        "10.0.0.123:8080",
    ],
)
def test_what_stays_readable(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "1 ",
        "a",
        "a.a",
        "1Z",
        "order ",
        "#a",
        "a@",
        "1 A ",
        "http://",
        "(1",
        "+1 ",
        "tracking ",
        "www.",
        "-eyJ",
    ],
)
def test_no_text_takes_long(part: str) -> None:
    """The time grows with the length alone; twice the text may not take ten times as long."""

    def seconds(characters: int) -> float:
        text = part * (characters // len(part))
        begun = time.process_time()
        redact(text)
        return time.process_time() - begun

    shorter = min(seconds(20_000) for _ in range(3))
    assert seconds(40_000) < 10 * shorter + 0.1


def test_an_excerpt_is_masked_across_lines() -> None:
    text = excerpt("my order number is\n12345 and phone 555\n010\n1234")
    assert text == "my order number is ***2345 and phone ***-***-1234"


def test_an_excerpt_is_short_and_on_one_line() -> None:
    text = excerpt("Hello,\n\nmy mail is ann@example.com and " + "x" * 200)
    assert text.startswith("Hello, my mail is ***@*** and x")
    assert len(text) == 80


def test_fields_are_masked_by_name_and_by_content() -> None:
    fields = {
        "Authorization": "anything",
        "password": "hunter2",
        "token": None,
        "path": "/v1/me",
        "error": "no user ann@example.com",
        "nested": {"api_key": "k", "count": 3},
        "list": ["ann@example.com", 4],
        "x-richpanel-webhook-token": "t",
        "user_email": "e",
        "err": ValueError("ann@example.com"),
        "code": 123456,
        "phoneNumber": 15551234567,
        "apiKey": "k",
        "phone": 15551234567,
        "error_code": "E7",
        "ok": True,
        "by number": {7: b"ann@example.com"},
    }
    assert masked_fields(fields) == {
        "Authorization": "***",
        "password": "***",
        "token": None,
        "path": "/v1/me",
        "error": "no user ***@***",
        "nested": {"api_key": "***", "count": 3},
        "list": ["***@***", 4],
        "x-richpanel-webhook-token": "***",
        "user_email": "***",
        "err": "***@***",
        "code": "***",
        "phoneNumber": 15551234567,
        "apiKey": "***",
        "phone": "***",
        "error_code": "E7",
        "ok": True,
        "by number": {"7": "***@***'"},
    }
