"""Filters and transforms: what they let through, what they make, what they refuse."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from waystation.errors import InvalidInput
from waystation.relay.rules.budget import Budget, RulesTooCostly
from waystation.relay.rules.evaluation import SHORT
from waystation.relay.rules.filters import BodyUnreadable, compile_filter
from waystation.relay.rules.paths import Webhook
from waystation.relay.rules.transforms import (
    JmesPath,
    Transform,
    TransformFailed,
    apply,
    check_transform,
    stored_transform,
    weight_of,
)

ORDER = {
    "type": "order.created",
    "total": 42.5,
    "count": 3,
    "paid": True,
    "note": None,
    "tags": ["new", "vip"],
    "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 5}],
    "customer": {"id": "cus_1", "email": "ann@example.com"},
}


def webhook(body: object = ORDER, **more: Any) -> Webhook:
    headers = {"content-type": "application/json", "x-github-event": "push"}
    return Webhook(
        msgspec.json.encode(body), more.pop("headers", headers), "a=1&b=2&b=3", "POST", "/eu"
    )


def passes(rules: object, what: Webhook | None = None) -> bool:
    return compile_filter(rules).passes(what or webhook(), Budget())


def rule(path: str, operator: str, *value: object) -> dict[str, object]:
    return {"path": path, "operator": operator, **({"value": value[0]} if value else {})}


@pytest.mark.parametrize(
    ("path", "operator", "value", "expected"),
    [
        ("$.type", "equals", "order.created", True),
        ("body.type", "equals", "other", False),
        ("$.count", "equals", 3, True),
        ("$.paid", "equals", 1, False),
        ("$.paid", "equals", True, True),
        ("$.note", "equals", None, True),
        ("$.missing", "equals", None, False),
        ("$.type", "not_equals", "other", True),
        ("$.type", "not_equals", "order.created", False),
        ("$.missing", "not_equals", "x", True),
        ("$.type", "in", ["order.created", "x"], True),
        ("$.type", "in", [], False),
        ("$.type", "contains", "created", True),
        ("$.tags", "contains", "vip", True),
        ("$.tags", "contains", "old", False),
        ("$.tags", "not_contains", "old", True),
        ("$.tags", "not_contains", "vip", False),
        ("$.customer", "contains", "email", True),
        ("$.type", "starts_with", "order.", True),
        ("$.type", "ends_with", ".created", True),
        ("$.count", "starts_with", "3", False),
        ("$.type", "regex", r"^order\.(created|paid)$", True),
        ("$.type", "regex", r"^paid", False),
        ("$.count", "regex", "3", False),
        ("$.total", "gt", 42, True),
        ("$.total", "gt", 42.5, False),
        ("$.total", "gte", 42.5, True),
        ("$.total", "lt", 43, True),
        ("$.total", "lte", 42.4, False),
        ("$.type", "gt", "order", True),
        ("$.type", "gt", 5, False),
        ("$.paid", "gt", 0, False),
        ("$.items[1].sku", "equals", "b", True),
        ("$.items[2].sku", "equals", "b", False),
        ("$.items[*].sku", "equals", "b", True),
        ("$.items[*].n", "gt", 5, False),
        ("$.items[*].sku", "not_equals", "b", False),
        ("$.tags[*]", "equals", "vip", True),
        ("headers.X-GitHub-Event", "equals", "push", True),
        ("query.a", "equals", "1", True),
        ("query.b[*]", "equals", "3", True),
        ("method", "equals", "POST", True),
        ("path", "starts_with", "/eu", True),
    ],
)
def test_operators(path: str, operator: str, value: object, expected: bool) -> None:
    assert passes(rule(path, operator, value)) is expected


def test_exists_and_not_exists() -> None:
    assert passes(rule("$.note", "exists"))
    assert not passes(rule("$.missing", "exists"))
    assert passes(rule("$.missing", "not_exists"))
    assert not passes(rule("$.customer.id", "not_exists"))


YES, NO = rule("$.count", "equals", 3), rule("$.count", "equals", 4)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], True),
        ([YES, NO], False),
        ([YES, YES], True),
        ({"all": [YES, NO]}, False),
        ({"any": [NO, YES]}, True),
        ({"any": []}, False),
        ({"not": YES}, False),
        ({"not": [YES, NO]}, True),
        ({"all": [{"any": [NO, YES]}, {"not": NO}]}, True),
    ],
)
def test_groups(rules: object, expected: bool) -> None:
    assert passes(rules) is expected


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ("x", "filters"),
        ([1], "filters[0]"),
        ({"all": {}}, "filters.all"),
        ({"all": [], "any": []}, "filters"),
        ([{"path": "$.a"}], "filters[0].operator"),
        ([rule("$.a", "like", 1)], "filters[0].operator"),
        ([rule("$.a", "equals")], "filters[0].value"),
        ([rule("nowhere.a", "exists")], "filters[0].path"),
        ([rule("$..a", "exists")], "filters[0].path"),
        ([rule("$.a[x]", "exists")], "filters[0].path"),
        ([{"path": 5, "operator": "exists"}], "filters[0].path"),
        ([rule("$.a", "regex", "(")], "filters[0].value"),
        ([rule("$.a", "regex", "(a)\\1")], "filters[0].value"),
        ([rule("$.a", "regex", "x" * 1001)], "filters[0].value"),
        ([rule("$.a", "in", "abc")], "filters[0].value"),
        ([rule("$.a", "gt", [])], "filters[0].value"),
        ([{**YES, "extra": 1}], "filters[0].extra"),
        ([YES] * 101, "filters[100]"),
        (
            {"not": {"not": {"not": {"not": {"not": {"not": {"not": {"not": {"not": YES}}}}}}}}},
            None,
        ),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: object, field: str | None) -> None:
    with pytest.raises(InvalidInput) as refused:
        compile_filter(rules)
    assert field is None or refused.value.field == field


@pytest.mark.parametrize(
    ("rules", "body"),
    [
        ([rule("$.a", "regex", r"(?:[abé]{0,30}){0,30}c")], {"a": "ab" * 2000}),
        ([rule("$.a", "regex", "x")] * 21, {}),
    ],
)
def test_regexes_that_cost_too_much_are_refused(rules: object, body: object) -> None:
    with pytest.raises(InvalidInput):
        compile_filter(rules)


@pytest.mark.parametrize(
    ("rules", "body"),
    [
        ([rule("$.a[*]", "contains", {"x": n}) for n in range(100)], {"a": [["y"] * 100] * 1300}),
        ([rule("$.a[*].x", "exists") for _ in range(100)], {"a": [0] * 80_000}),
        ([rule("$.a[*][*]", "not_exists") for _ in range(100)], {"a": [[0] * 100] * 800}),
        ([rule("$.a[*]", "in", [{"x": n} for n in range(400)])], {"a": [[0]] * 40_000}),
        ([rule("$.a[*]", "regex", "(x.{0,9}){9}y") for _ in range(20)], {"a": ["x" * 60_000] * 4}),
    ],
)
def test_a_filter_that_costs_too_much_fails(rules: list[object], body: object) -> None:
    """Long before it has looked at everything."""
    begun = time.monotonic()
    with pytest.raises(RulesTooCostly):
        passes({"any": rules}, webhook(body))
    assert time.monotonic() - begun < 5


def test_all_rules_of_an_event_share_one_budget() -> None:
    budget, what = Budget(steps=3_000), webhook({"a": [0] * 1_000})
    filters = compile_filter(rule("$.a[*]", "equals", 1))
    assert not filters.passes(what, budget)
    with pytest.raises(RulesTooCostly):
        filters.passes(what, budget)


def test_time_is_bounded_too() -> None:
    budget = Budget(seconds=-1.0)
    with pytest.raises(RulesTooCostly, match="too long"):
        compile_filter(rule("$.a[*]", "equals", 1)).passes(webhook({"a": [0] * 5_000}), budget)


def test_in_looks_up_rather_than_through() -> None:
    inside = [rule("$.a[*]", "in", [*range(499), {"deep": 1}])]
    assert not passes(inside, webhook({"a": [1000] * 100_000}))
    assert passes(inside, webhook({"a": [{"deep": 1}]}))
    assert not passes(inside, webhook({"a": [True]}))


def test_a_regex_takes_time_by_the_text_only() -> None:
    """Backtracking engines need longer than the age of the world for this one."""
    begun = time.monotonic()
    assert not passes([rule("$.a", "regex", r"^(a+)+$")], webhook({"a": "a" * 50_000 + "!"}))
    assert time.monotonic() - begun < 5


JSON = {"content-type": "application/json"}
UNREADABLE = [
    (b'{"type": "a", "n": NaN}', JSON),
    (b'{"type": "a", "n": 1e400}', JSON),
    (b'{"type": "\\ud800"}', JSON),
    (b'\xef\xbb\xbf{"type": "a"}', JSON),
    ('{"type": "a"}'.encode("utf-16"), JSON),
    ('{"type": "a"}'.encode("utf-16-le"), {}),
    ('{"type": "a"}'.encode("utf-32"), {}),
    (b'{"type": "a",}', {}),
    (b"{'type': 'a'}", {"content-type": "text/plain"}),
    (b"type: a", JSON),
    (b"type=a", {"content-type": "application/cloudevents+json"}),
    (b"\xff\xfe", {}),
    (b"&".join([b"type=a"] * 5_001), {"content-type": "application/x-www-form-urlencoded"}),
]


@pytest.mark.parametrize(("content", "headers"), UNREADABLE)
@pytest.mark.parametrize(
    "rules",
    [
        rule("$.type", "equals", "a"),
        rule("$.type", "not_equals", "a"),
        rule("$.type", "not_contains", "a"),
        rule("$.type", "not_exists"),
        {"not": rule("$.type", "equals", "a")},
        {"any": [rule("method", "equals", "POST"), rule("$.type", "exists")]},
    ],
)
def test_a_body_that_cannot_be_read_matches_nothing_that_looks_at_it(
    content: bytes, headers: dict[str, str], rules: object
) -> None:
    """Not even a negation: whoever receives it may read what we cannot."""
    with pytest.raises(BodyUnreadable):
        passes(rules, Webhook(content, headers))
    assert passes(rule("method", "equals", "POST"), Webhook(content, headers))


@pytest.mark.parametrize(
    ("content", "headers"),
    [(b"hello", {}), (b"", JSON), (b"", {}), (b"NaN", {}), (b"a=1", {"content-type": "text/csv"})],
)
def test_plain_text_can_be_read(content: bytes, headers: dict[str, str]) -> None:
    assert passes(rule("$.type", "not_exists"), Webhook(content, headers))


def test_a_form_is_filtered_like_json() -> None:
    form = Webhook(
        b"From=%2B1415&Body=hi", {"content-type": "application/x-www-form-urlencoded; charset=x"}
    )
    assert passes(rule("$.From", "equals", "+1415"), form)


def test_json_that_curl_calls_a_form_is_json() -> None:
    sent = Webhook(b'{"type": "a"}', {"content-type": "application/x-www-form-urlencoded"})
    assert passes(rule("$.type", "equals", "a"), sent)


def test_a_body_that_is_text_is_a_string() -> None:
    assert passes(rule("body", "contains", "hello"), Webhook(b"hello there", {}))


# Transforms


def result(transform: dict[str, Any], body: object = ORDER) -> Any:
    compiled: Transform = msgspec.convert(transform, Transform)
    check_transform(compiled)
    content, _ = apply(compiled, webhook(body), Budget())
    return msgspec.json.decode(content)


def test_passthrough_keeps_every_byte() -> None:
    what = Webhook(b'{ "a" :1}\n\xff', {})
    compiled = msgspec.convert({"type": "passthrough"}, Transform)
    assert apply(compiled, what, Budget()) == (b'{ "a" :1}\n\xff', False)


def test_field_map() -> None:
    rules = [
        {"from": "$.customer.id", "to": "buyer.id"},
        {"from": "headers.x-github-event", "to": "kind"},
        {"from": "$.items[*].sku", "to": "skus"},
        {"from": "$.missing", "to": "buyer.country", "default": "DE"},
        {"from": "$.missing", "to": "not_there"},
        {"from": "$.note", "to": "note", "default": "x"},
    ]
    assert result({"type": "field_map", "rules": rules}) == {
        "buyer": {"id": "cus_1", "country": "DE"},
        "kind": "push",
        "skus": ["a", "b"],
        "note": None,
    }


def test_steps() -> None:
    steps = [
        {"op": "set", "path": "source", "value": "shop"},
        {"op": "set", "path": "customer.vip", "value": None},
        {"op": "remove", "path": "items"},
        {"op": "rename", "from": "customer.email", "to": "email"},
        {"op": "rename", "from": "missing", "to": "still_missing"},
    ]
    body = {"items": [1], "customer": {"id": 1, "email": "a@b"}}
    assert result({"type": "steps", "steps": steps}, body) == {
        "customer": {"id": 1, "vip": None},
        "source": "shop",
        "email": "a@b",
    }


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{id: customer.id, n: sum(items[*].n)}", {"id": "cus_1", "n": 6.0}),
        ("items[0].sku", "a"),
        ("items[:1].n", [1]),
        ("items[::2] | [0].sku", "a"),
        ("items[?n > `1`].sku | [0]", "b"),
        (
            "{all: [type, customer.email, tags[1]]}",
            {"all": ["order.created", "ann@example.com", "vip"]},
        ),
        ("join('-', tags)", "new-vip"),
        ("not_null(missing, type, total)", "order.created"),
    ],
)
def test_jmespath(expression: str, expected: object) -> None:
    assert result({"type": "jmespath", "expression": expression}) == expected


def test_what_one_event_brings_is_not_in_the_next() -> None:
    """A default is used again and again, and nothing may stay in it."""
    rules = [
        {"from": "$.meta", "to": "out", "default": {}},
        {"from": "$.secret", "to": "out.secret"},
    ]
    compiled = stored_transform(msgspec.json.encode({"type": "field_map", "rules": rules}).decode())
    apply(compiled, webhook({"secret": "A"}), Budget())
    assert apply(compiled, webhook({"other": 1}), Budget())[0] == b'{"out":{}}'
    steps = [
        {"op": "set", "path": "meta", "value": {}},
        {"op": "rename", "from": "secret", "to": "meta.secret"},
    ]
    compiled = stored_transform(msgspec.json.encode({"type": "steps", "steps": steps}).decode())
    apply(compiled, webhook({"secret": "A"}), Budget())
    assert apply(compiled, webhook({"b": 1}), Budget())[0] == b'{"b":1,"meta":{}}'


def test_one_place_can_go_to_two() -> None:
    rules = [{"from": "$", "to": "payload"}, {"from": "$", "to": "payload.raw"}]
    assert result({"type": "field_map", "rules": rules}, {"a": 1}) == {
        "payload": {"a": 1, "raw": {"a": 1}}
    }


@pytest.mark.parametrize(
    ("transform", "field"),
    [
        ({"type": "field_map", "rules": [{"from": "x.y", "to": "a"}]}, "transform.rules[0].from"),
        ({"type": "field_map", "rules": [{"from": "$.y", "to": "a..b"}]}, "transform.rules[0].to"),
        ({"type": "steps", "steps": [{"op": "set", "path": "a"}]}, "transform.steps[0].value"),
        ({"type": "steps", "steps": [{"op": "remove"}]}, "transform.steps[0].path"),
        ({"type": "steps", "steps": [{"op": "rename", "to": "b"}]}, "transform.steps[0].from"),
        (
            {"type": "steps", "steps": [{"op": "remove", "path": "a", "value": 1}]},
            "transform.steps[0].value",
        ),
        ({"type": "jmespath", "expression": "a["}, "transform.expression"),
        ({"type": "jmespath", "expression": "|".join(["[@,@]"] * 40)}, "transform.expression"),
        ({"type": "jmespath", "expression": "join(a, b)"}, "transform.expression"),
        (
            {"type": "jmespath", "expression": "to_string([@,@,@]|[@,@,@])"},
            "transform.expression",
        ),
        ({"type": "jmespath", "expression": "a" * 2001}, "transform.expression"),
        ({"type": "jmespath", "expression": "foo(@)"}, "transform.expression"),
        ({"type": "jmespath", "expression": "map(a, b, c)"}, "transform.expression"),
        ({"type": "jmespath", "expression": "|".join(["a"] * 600)}, "transform.expression"),
    ],
)
def test_transforms_that_make_no_sense_are_refused(transform: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_transform(msgspec.convert(transform, Transform))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("transform", "body"),
    [
        ({"type": "jmespath", "expression": "sum(items)"}, {"items": ["x"]}),
        ({"type": "jmespath", "expression": "[*].[" + ",".join(["a"] * 100) + "]"}, [{}] * 9000),
        ({"type": "jmespath", "expression": "[@,@,@]"}, ["x" * 100_000]),
        ({"type": "jmespath", "expression": "a[::0]"}, {"a": [1]}),
        ({"type": "jmespath", "expression": "[?sum(@) > `1`]"}, [[1] * 300] * 300),
        ({"type": "steps", "steps": [{"op": "remove", "path": "a"}]}, [1, 2]),
        (
            {"type": "jmespath", "expression": f"[{','.join(['max(a)'] * 280)}]"},
            {"a": [1] * 90_000},
        ),
        ({"type": "jmespath", "expression": f"[{','.join(['a'] * 280)}][]"}, {"a": [1] * 90_000}),
        (
            {"type": "jmespath", "expression": f"[{','.join(['a[::2]'] * 200)}]"},
            {"a": [1] * 90_000},
        ),
        (
            {"type": "field_map", "rules": [{"from": "$.a", "to": f"b{n}"} for n in range(200)]},
            {"a": [1] * 87_000},
        ),
        (
            {"type": "field_map", "rules": [{"from": "$.a[*]", "to": f"b{n}"} for n in range(200)]},
            {"a": [1] * 87_000},
        ),
    ],
)
def test_a_transform_that_fails_says_so(transform: dict[str, Any], body: object) -> None:
    begun = time.monotonic()
    with pytest.raises(TransformFailed):
        result(transform, body)
    assert time.monotonic() - begun < 5


def test_a_large_value_may_be_renamed_back_and_forth() -> None:
    """What is only moved is not copied."""
    steps = [{"op": "rename", "from": "a", "to": "b"}, {"op": "rename", "from": "b", "to": "a"}]
    body = {"a": [1] * 87_000}
    assert result({"type": "steps", "steps": steps * 100}, body) == body


@pytest.mark.parametrize(
    "transform",
    [
        {"type": "jmespath", "expression": "type"},
        {"type": "steps", "steps": []},
        {"type": "field_map", "rules": [{"from": "$.type", "to": "type"}]},
    ],
)
def test_a_body_that_cannot_be_read_is_not_transformed(transform: dict[str, Any]) -> None:
    compiled = msgspec.convert(transform, Transform)
    with pytest.raises(TransformFailed, match="cannot be read"):
        apply(compiled, Webhook(b'{"type": NaN}', JSON), Budget())


def test_a_transform_leaves_the_event_as_it_was() -> None:
    what = webhook({"customer": {"id": 1}})
    steps = {"type": "steps", "steps": [{"op": "set", "path": "customer.id", "value": 2}]}
    compiled = msgspec.convert(steps, Transform)
    apply(compiled, what, Budget())
    assert what.body == {"customer": {"id": 1}}


@pytest.mark.parametrize(
    ("expression", "beside"),
    [
        ("customer.id", False),
        ("{id: customer.id, first: items[0].sku}", False),
        ("items[*].sku", True),
        ("items[?n > `1`]", True),
        ("`[1,2,3]`[?@]", True),
        ("to_string(@)", True),
        ("items[::2]", True),
    ],
)
def test_expressions_whose_cost_the_body_does_not_show_run_beside_the_loop(
    expression: str, beside: bool
) -> None:
    assert (weight_of(JmesPath(expression)) * 256 > SHORT) is beside
