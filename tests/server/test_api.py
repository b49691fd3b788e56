"""The API as a whole: its description, its errors, its guard, its health."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.site import site
from waystation.queues import QueueSpec
from waystation.seam import System
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from tests.support.site import Site
    from waystation.clock import ManualClock

PUBLIC = {
    ("POST", "/v1/auth/signup"),
    ("POST", "/v1/auth/login"),
    ("POST", "/v1/auth/refresh"),
    ("POST", "/v1/auth/logout"),
    ("GET", "/v1/auth/{provider}/start"),
    ("GET", "/v1/auth/{provider}/callback"),
}


async def described(server: Site) -> dict[str, Any]:
    answer = await server.get("/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


async def test_the_description_is_openapi_3_1(server: Site) -> None:
    document = await described(server)
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


async def test_every_route_but_the_public_ones_wants_to_know_who_calls(server: Site) -> None:
    """Whatever is added later is guarded too, or has to be named here."""
    document = await described(server)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            concrete = re.sub(r"\{\w+\}", "x", path)
            answer = await server.call(method.upper(), concrete, {})
            if (method.upper(), path) in PUBLIC:
                assert "security" not in operation
            else:
                assert answer.status == 401, path
                assert operation["security"] == [{"bearer": []}]


async def test_a_key_that_may_only_read_cannot_write_anywhere(server: Site) -> None:
    key = await server.api_key("read")
    document = await described(server)
    for path, item in document["paths"].items():
        for method in item:
            if (method.upper(), path) in PUBLIC or method == "get":
                continue
            concrete = re.sub(r"\{\w+\}", "x", path)
            answer = await server.call(method.upper(), concrete, {}, token=key)
            assert answer.status == 403, path


async def test_every_list_is_read_in_pages_and_a_bad_cursor_is_refused(server: Site) -> None:
    """Whatever lists are added later are, too."""
    key = await server.api_key()
    source = (await server.post("/v1/sources", {"name": "A"}, token=key)).json["id"]
    given = {"name": "A", "destination_url": "https://example.com/"}
    path = f"/v1/sources/{source}/connections"
    connection = (await server.post(path, given, token=key)).json["id"]
    await server.call("PUT", "/v1/tenants/acme/settings", {"title": "Acme"}, token=key)
    await server.call("PUT", "/v1/tenants/acme/inboxes/main", {"title": "Main"}, token=key)
    site_ = {"origin": "https://example.com", "revalidate_seconds": 60}
    await server.call("PUT", "/v1/pages/sites/shop", site_, token=key)
    ids = {
        "source_id": source,
        "connection_id": connection,
        "conversation_id": "c",
        "tenant": "acme",
        "inbox": "main",
        "uid": "ann",
        "site": "shop",
    }
    document = await described(server)
    lists = [path for path, item in document["paths"].items() if _is_list(item, document)]
    assert len(lists) >= 15
    for path in lists:
        concrete = re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], path)
        page = await server.get(f"{concrete}?limit=1", token=key)
        assert page.status == 200, (path, page)
        assert len(page.json["data"]) <= 1
        for bad in ("?limit=0", "?cursor=nonsense", "?cursor=%00", "?cursor=" + "A" * 40):
            answer = await server.get(concrete + bad, token=key)
            assert answer.status == 400, path
            assert answer.fields == [bad[1:].partition("=")[0]]


def _is_list(item: dict[str, Any], document: dict[str, Any]) -> bool:
    content = item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return "has_more" in document["components"]["schemas"].get(name, {}).get("properties", {})


async def test_lists_lead_from_page_to_page_until_all_was_shown(server: Site) -> None:
    key = await server.api_key()
    for number in range(4):
        await server.post("/v1/sources", {"name": f"source {number}"}, token=key)
    seen, cursor, pages = [], "", 0
    while pages < 10:
        page = (await server.get(f"/v1/sources?limit=2{cursor}", token=key)).json
        seen += [source["name"] for source in page["data"]]
        pages += 1
        assert page["has_more"] == (page["cursor"] is not None)
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['cursor']}"
    assert sorted(seen) == ["Waystation alerts", *(f"source {n}" for n in range(4))]
    assert (seen[-1], pages) == ("Waystation alerts", 3)


async def test_every_post_takes_an_idempotency_key(server: Site) -> None:
    document = await described(server)
    posts = [item["post"] for item in document["paths"].values() if "post" in item]
    assert posts
    for post in posts:
        assert "Idempotency-Key" in [parameter["name"] for parameter in post["parameters"]]


async def test_whoever_opens_the_server_in_a_browser_finds_the_way(server: Site) -> None:
    answer = await server.get("/")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    found = re.findall(r"href='(/[^']*)'", answer.body.decode())
    assert "/docs" in found
    for path in found:
        assert (await server.get(path)).status == 200, path
    assert (await server.post("/")).status == 405


async def test_the_docs_need_nothing_from_elsewhere(server: Site) -> None:
    answer = await server.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.body.decode()
    assert "/v1/api-keys" in page
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=['\"]?(?:https?:)?//", page)


@pytest.mark.parametrize("path", ["/v1", "//", "/v1/no", "/schema", "/schema/openapi.json", "/%ff"])
async def test_what_is_not_there(server: Site, path: str) -> None:
    answer = await server.get(path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == 404


async def test_a_method_that_is_not_there(server: Site) -> None:
    answer = await server.call("DELETE", "/v1/me")
    assert answer.status == 405
    assert (await server.post("/healthz")).status == 405


async def test_a_body_is_at_most_a_megabyte(server: Site) -> None:
    answer = await server.post("/v1/auth/login", body=b"x" * (1024 * 1024 + 1))
    assert (answer.status, answer.json["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("opening", [b'{"email":', b"", b'{"email": "x", "password": '])
async def test_a_body_that_is_nested_too_deeply_is_refused(server: Site, opening: bytes) -> None:
    answer = await server.post(
        "/v1/auth/login",
        body=opening + b"[" * 200_000,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status == 400
    assert answer.fields


async def test_it_is_alive_and_ready(server: Site) -> None:
    assert (await server.get("/healthz")).json == {"status": "ok"}
    ready = await server.get("/readyz")
    assert (ready.status, ready.json["status"]) == (200, "ready")


async def test_a_probe_may_ask_for_the_head_only(server: Site) -> None:
    answer = await server.call("HEAD", "/readyz")
    assert (answer.status, answer.body) == (200, b"")


async def test_it_is_not_ready_when_the_store_is_not(server: Site) -> None:
    await server.runtime.store.close()
    answer = await server.get("/readyz")
    assert (answer.status, answer.json["status"]) == (503, "unavailable")
    assert answer.json["store"] == "StoreUnavailable"
    assert (await server.get("/healthz")).status == 200


async def test_it_is_not_ready_while_it_drains(server: Site) -> None:
    server.runtime.supervisor.stopping.set()
    answer = await server.get("/readyz")
    assert (answer.status, answer.json["status"]) == (503, "draining")


async def test_a_job_that_fails_is_shown(server: Site) -> None:
    failed = asyncio.Event()

    async def job(stopping: asyncio.Event) -> None:
        failed.set()
        raise ValueError("no mail for ann@example.com")

    supervisor = server.runtime.supervisor
    supervisor.add("postman", job)
    supervisor.start()
    await failed.wait()
    await asyncio.sleep(0)
    answer = await server.get("/readyz")
    await supervisor.stop()
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    [state] = answer.json["jobs"]
    assert (state["name"], state["status"], state["restarts"]) == ("postman", "restarting", 1)
    assert state["last_error"] == "ValueError"


async def test_metrics_count_requests_by_route(server: Site) -> None:
    key = await server.api_key()
    for _ in range(3):
        await server.get("/v1/me", token=key)
    await server.call("DELETE", "/v1/api-keys/key_1", token=key)
    await server.get("/v1/made/up/by/a/scanner")
    page = (await server.get("/metrics")).body.decode()
    assert 'waystation_http_requests_total{method="GET",route="/v1/me",status="200"} 3.0' in page
    assert 'route="/v1/api-keys/{key_id}"' in page
    assert "scanner" not in page
    assert 'waystation_http_request_seconds_bucket{le="0.005",route="/v1/me"}' in page


async def test_metrics_show_the_queues(clock: ManualClock) -> None:
    spec = QueueSpec(name="letters")
    post = System(name="post", queues=[spec])
    async with site(clock, systems=[*SYSTEMS, post]) as server:
        await server.runtime.queues[spec].send(1)
        page = (await server.get("/metrics")).body.decode()
    assert 'waystation_queue_messages{queue="letters",state="ready"} 1.0' in page
    assert 'waystation_queue_oldest_seconds{queue="letters"}' in page


async def test_a_store_that_fails_is_a_503(server: Site) -> None:
    key = await server.api_key()
    await server.runtime.store.close()
    answer = await server.get("/v1/me", token=key)
    assert (answer.status, answer.json["detail"]) == (503, "try again in a moment")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("path", "body", "field", "said"),
    [
        ("/v1/api-keys", {"permissions": "root"}, "permissions", "read, write"),
        ("/v1/sources", {"name": "A", "provider": "smoke"}, "provider", "custom, github"),
        (
            "/v1/sources",
            {"name": "A", "verification": {"mode": "maybe"}},
            "verification.mode",
            "none, signature",
        ),
        ("/v1/sources", {"name": "A", "dedupe": {"mode": "no"}}, "dedupe.mode", "default, fields"),
    ],
)
async def test_a_choice_that_is_none_is_told_what_there_is(
    server: Site, path: str, body: Any, field: str, said: str
) -> None:
    answer = await server.post(path, body, token=await server.api_key())
    assert (answer.status, answer.fields) == (400, [field])
    message = answer.json["errors"][0]["message"]
    assert message.startswith("must be one of ")
    assert all(value in message for value in said.split(", "))


@pytest.mark.parametrize("query", ["period=1h", "period=null", "period=24h&period=7d", "period="])
async def test_a_parameter_that_is_no_choice_is_told_what_there_is(
    server: Site, query: str
) -> None:
    answer = await server.get(f"/v1/analytics/overview?{query}", token=await server.api_key())
    assert (answer.status, answer.fields) == (400, ["period"])
    assert re.search("24h, 30d, 7d|once", answer.json["detail"])


@pytest.mark.parametrize("value", ["60", True, 1.5, None])
async def test_a_number_is_a_number(server: Site, value: Any) -> None:
    site_ = {"origin": "https://example.com", "revalidate_seconds": value}
    key = await server.api_key()
    answer = await server.call("PUT", "/v1/pages/sites/shop", site_, token=key)
    assert (answer.status, answer.fields) == (400, ["revalidate_seconds"])


async def test_options_has_every_method_of_a_path(server: Site) -> None:
    document = await described(server)
    for path, item in document["paths"].items():
        answer = await server.call("OPTIONS", re.sub(r"\{\w+\}", "x", path))
        assert answer.status == 204, path
        wanted = sorted([*(method.upper() for method in item), "OPTIONS"])
        assert answer.headers["allow"].split(", ") == wanted
    assert (await server.call("OPTIONS", "/v1/nothing")).status == 404


async def test_bodies_are_described_as_they_are_read(server: Site) -> None:
    document = await described(server)
    schemas = document["components"]["schemas"]
    assert schemas["NewSource"]["additionalProperties"] is False
    assert "stripe" in schemas["NewSource"]["properties"]["provider"]["enum"]
    assert schemas["SignUp"]["properties"]["email"]["format"] == "email"
    assert schemas["SourceView"]["properties"]["created_at"]["format"] == "date-time"
    body = document["paths"]["/v1/events/{event_id}/replay"]["post"]["requestBody"]
    assert body["required"] is False
