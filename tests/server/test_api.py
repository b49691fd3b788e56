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


async def test_every_post_takes_an_idempotency_key(server: Site) -> None:
    document = await described(server)
    posts = [item["post"] for item in document["paths"].values() if "post" in item]
    assert posts
    for post in posts:
        assert "Idempotency-Key" in [parameter["name"] for parameter in post["parameters"]]


async def test_the_docs_need_nothing_from_elsewhere(server: Site) -> None:
    answer = await server.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.body.decode()
    assert "/v1/api-keys" in page
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=['\"]?(?:https?:)?//", page)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/no", "/schema", "/schema/openapi.json", "/%ff"])
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
