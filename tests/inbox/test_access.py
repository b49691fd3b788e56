"""Who may see and do what: accounts, tenants, user tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from waystation.inbox.tables import InboxConfig, Settings

if TYPE_CHECKING:
    from tests.inbox.office import Office


async def stranger(office: Office) -> str:
    return str((await office.server.sign_up("eve@example.com"))["access_token"])


async def test_to_every_other_account_a_tenant_does_not_exist(office: Office) -> None:
    id_ = await office.sent("u")
    eve = await stranger(office)
    settings = {"title": "Mine now", "ttl": "1d"}
    calls = [
        ("PUT", "/v1/tenants/acme/settings", settings),
        ("GET", "/v1/tenants/acme/settings", None),
        ("POST", "/v1/tenants/acme/rotate-key", None),
        ("GET", "/v1/tenants/acme/inboxes", None),
        ("PUT", office.base, {"title": "x"}),
        ("GET", office.base, None),
        (
            "POST",
            f"{office.base}/messages",
            {"audience": {"kind": "everyone"}, "sender": "x", "message": {"title": "y"}},
        ),
        ("GET", f"{office.base}/messages/{id_}", None),
        ("POST", f"{office.base}/messages/{id_}/users", {"uids": ["a"]}),
        ("DELETE", f"{office.base}/messages/{id_}", None),
        ("POST", f"{office.base}/reconcile", None),
        ("POST", office.user("u", "token"), None),
        ("GET", office.user("u", "messages"), None),
        ("GET", office.user("u", "counts"), None),
        ("GET", office.user("u", "stream"), None),
        ("POST", office.user("u", "seen"), None),
        ("POST", office.user("u", "read-all"), None),
        ("POST", office.user("u", f"messages/{id_}/read"), None),
        ("DELETE", office.user("u", f"messages/{id_}"), None),
    ]
    for method, path, body in calls:
        answer = await office.call(method, path, body, token=eve)
        assert answer.status == 404, (method, path, answer)
        assert (await office.server.call(method, path, body)).status == 401
    assert await office.numbers() == (1, 1)
    assert (await office.call("GET", "/v1/tenants/acme/settings")).json["title"] == "Acme"


async def test_a_tenant_of_another_service_is_for_operators_to_take(office: Office) -> None:
    await office.store.put(Settings(tenant_key="theirs", title="Stak's", ttl="7d", uid="admin"))
    await office.store.put(InboxConfig(tenant_key="half", inbox_key="main", title="Stak's"))
    eve = await stranger(office)
    body = {"title": "Mine", "ttl": "1d"}
    for tenant in ("theirs", "half"):
        path = f"/v1/tenants/{tenant}/settings"
        assert (await office.call("PUT", path, body, token=eve)).status == 404
        assert (await office.call("GET", path)).status == 404
        assert (await office.call("PUT", path, body)).status == 200
    listed = (await office.call("GET", "/v1/tenants")).json["data"]
    assert [tenant["tenant"] for tenant in listed] == ["acme", "half", "theirs"]


async def test_an_account_has_so_many_tenants_and_no_more(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.tenants.MOST_TENANTS", 2)
    statuses = [
        (await local.call("PUT", f"/v1/tenants/t{n}/settings", {"title": "x"})).status
        for n in range(3)
    ]
    assert statuses == [200, 409, 409]
    monkeypatch.setattr("waystation.inbox.tenants.MOST_INBOXES", 1)
    path = "/v1/tenants/acme/inboxes/other"
    assert (await local.call("PUT", path, {"title": "x"})).status == 409


async def test_a_user_token_opens_its_own_inbox_and_nothing_else(office: Office) -> None:
    id_ = await office.sent("u", "v")
    await office.call("PUT", "/v1/tenants/acme/inboxes/other", {"title": "x"})
    token = await office.token("u")
    assert (await office.call("GET", office.user("u", "counts"), token=token)).json["total"] == 1
    read = office.user("u", f"messages/{id_}/read")
    assert (await office.call("POST", read, token=token)).status == 200
    for path in (
        office.user("v", "counts"),
        "/v1/tenants/acme/inboxes/other/users/u/counts",
        "/v1/tenants/other/inboxes/main/users/u/counts",
    ):
        assert (await office.call("GET", path, token=token)).status == 404
    for method, path in (
        ("GET", office.base),
        ("GET", "/v1/me"),
        ("POST", office.user("u", "token")),
        ("DELETE", f"{office.base}/messages/{id_}"),
    ):
        assert (await office.call(method, path, token=token)).status == 401
    assert await office.numbers("v") == (1, 1)


async def test_a_user_token_expires(office: Office) -> None:
    token = await office.token("u", expires_in=60)
    path = office.user("u", "counts")
    office.clock.advance(59)
    assert (await office.call("GET", path, token=token)).status == 200
    office.clock.advance(1)
    assert (await office.call("GET", path, token=token)).status == 401


async def test_rotating_the_key_makes_tokens_worthless(office: Office) -> None:
    old = await office.token("u")
    path = office.user("u", "counts")
    assert (await office.call("POST", "/v1/tenants/acme/rotate-key")).status == 204
    assert (await office.call("GET", path, token=old)).status == 401
    assert (await office.call("GET", path, token=await office.token("u"))).status == 200


@pytest.mark.parametrize("forged", ["", "x", "W10.x", ".", "é", "A" * 999])
async def test_forged_tokens_are_refused(local: Office, forged: str) -> None:
    headers = {"Authorization": f"Bearer wsu_{forged}".encode().decode("latin-1")}
    path = local.user("u", "counts")
    assert (await local.server.call("GET", path, headers=headers)).status == 401


async def test_a_changed_token_is_refused(local: Office) -> None:
    token = await local.token("u")
    named, _, signature = token.partition(".")
    for changed in (f"{named}A.{signature}", f"{named}.{signature[:-2]}", f"{named}."):
        path = local.user("u", "counts")
        assert (await local.call("GET", path, token=changed)).status == 401


async def test_a_read_key_reads_and_no_more(local: Office) -> None:
    id_ = await local.sent("u")
    key = await local.server.api_key("read")
    assert (await local.call("GET", local.user("u", "counts"), token=key)).status == 200
    read = local.user("u", f"messages/{id_}/read")
    assert (await local.call("POST", read, token=key)).status == 403


@pytest.mark.parametrize("name", ["a#b", "$public", "x" * 129, "%00", "%23"])
async def test_names_that_keys_cannot_have_are_refused(local: Office, name: str) -> None:
    path = f"/v1/tenants/{name.replace('#', '%23')}/settings"
    answer = await local.call("PUT", path, {"title": "x"})
    assert (answer.status, answer.fields) == (400, ["tenant"])


async def test_pages_of_other_sites_may_ask_with_a_token(local: Office) -> None:
    path = local.user("u", "counts")
    origin = {"Origin": "https://shop.example", "Access-Control-Request-Method": "GET"}
    asked = await local.server.call("OPTIONS", path, headers=origin)
    assert asked.status == 204
    assert "authorization" in asked.headers["access-control-allow-headers"]
    for token, status in ((await local.token(), 200), ("wsu_x", 401)):
        answer = await local.call("GET", path, token=token, headers={"Origin": "https://x.example"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "*")
    other = await local.call("GET", "/v1/me", headers={"Origin": "https://x.example"})
    assert "access-control-allow-origin" not in other.headers
