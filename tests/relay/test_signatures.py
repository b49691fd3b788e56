"""What providers sign is verified; what they did not sign is not."""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
import yarl
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.relay.hub import Hub, hub_at
from tests.relay.senders import (
    CERTIFICATE_URL,
    SENDERS,
    URL,
    Signed,
    paypal_certificate,
    paypal_root,
    svix_sender,
    twilio_json,
)
from tests.support.faults import Faults, relay_on
from waystation.accounts.tables import User
from waystation.outbound import Reply
from waystation.relay.receiving.signatures import CHECKS, PROVIDERS, Arrival
from waystation.relay.tables import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.site import Answer
    from waystation.clock import ManualClock

ALL = sorted(SENDERS)


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    """PayPal's host is not reached from here: what it would serve is given instead."""

    async def serve(call: Any, method: str, url: str, **more: Any) -> Reply:
        assert (method, url) == ("GET", CERTIFICATE_URL)
        return Reply(200, paypal_certificate())

    def instead(outbound: Any) -> Faults:
        faults = Faults(outbound)
        faults.around["request"] = serve
        return faults

    async with hub_at(
        clock, systems=relay_on({"paypal_roots": [paypal_root()]}, outbound=instead)
    ) as running:
        yield running


async def source(hub: Hub, provider: str, *secrets: str, **more: Any) -> str:
    given = list(secrets) or [SENDERS[provider].secret]
    return await hub.source(provider=provider, signing_secrets=given, public_url=URL, **more)


def signed(hub: Hub, provider: str, secret: str | None = None, late: float = 0.0) -> Signed:
    sender = SENDERS[provider]
    return sender.sign(sender.body, secret or sender.secret, hub.clock() - late)


async def send(hub: Hub, source_id: str, what: Signed) -> Answer:
    return await hub.send(source_id, what.body, headers=what.headers, rest=what.rest)


def test_every_provider_has_a_sender() -> None:
    assert set(ALL) == PROVIDERS


@pytest.mark.parametrize("provider", ALL)
async def test_what_a_provider_signs_is_taken(hub: Hub, provider: str) -> None:
    source_id = await source(hub, provider)
    what = signed(hub, provider)
    answer = await send(hub, source_id, what)
    assert answer.status == 200, answer
    event = await hub.event(answer.json["id"])
    assert event["body"].encode() == what.body


@pytest.mark.parametrize("provider", ALL)
async def test_a_changed_body_is_refused(hub: Hub, provider: str) -> None:
    source_id = await source(hub, provider)
    what = signed(hub, provider)
    if provider == "mailgun":  # signs its timestamp and token, not the rest
        what.body = what.body.replace(b"ttt", b"uuu")
    else:
        what.body = what.body.replace(b"o", b"0", 1)
    answer = await send(hub, source_id, what)
    assert answer.status == 401
    assert (await hub.get(f"/v1/sources/{source_id}/events"))["data"] == []


@pytest.mark.parametrize("provider", sorted(set(ALL) - {"sendgrid"}))
async def test_another_secret_is_refused(hub: Hub, provider: str) -> None:
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    source_id = await source(hub, provider, other)
    assert (await send(hub, source_id, signed(hub, provider))).status == 401


@pytest.mark.parametrize("provider", ALL)
async def test_each_of_several_secrets_is_good(hub: Hub, provider: str) -> None:
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    if provider == "sendgrid":
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        other = base64.b64encode(der).decode()
    source_id = await source(hub, provider, other, SENDERS[provider].secret)
    assert (await send(hub, source_id, signed(hub, provider))).status == 200


@pytest.mark.parametrize("provider", sorted(p for p in ALL if SENDERS[p].dated))
async def test_what_is_old_is_refused(hub: Hub, provider: str) -> None:
    source_id = await source(hub, provider)
    assert (await send(hub, source_id, signed(hub, provider, late=301))).status == 401


TOLERANCES = {
    "stripe": 300,
    "slack": 300,
    "paddle": 5,
    "linear": 60,
    "zendesk": 300,
    "hubspot": 300,
    "sendgrid": 300,
    "mailgun": 12 * 3600,
    "standard-webhooks": 300,
}


@pytest.mark.parametrize("provider", sorted(TOLERANCES))
def test_a_clock_may_be_off_by_a_providers_tolerance_and_no_more(provider: str) -> None:
    """In both directions: a time in the future is as wrong as one long past."""
    sender, now, most = SENDERS[provider], 1_800_000_000.0, TOLERANCES[provider]
    for late, taken in ((most, True), (most + 1, False), (-most, True), (-most - 1, False)):
        what = sender.sign(sender.body, sender.secret, now - late)
        headers = {name.lower(): value for name, value in what.headers.items()}
        arrival = Arrival("POST", URL + what.rest, headers, what.body, now)
        assert CHECKS[provider](arrival, sender.secret) is taken, late


@pytest.mark.parametrize("provider", ALL)
async def test_a_request_without_a_signature_is_refused(hub: Hub, provider: str) -> None:
    source_id = await source(hub, provider)
    assert (await hub.send(source_id, SENDERS[provider].body)).status == 401


@pytest.mark.parametrize("provider", sorted(CHECKS))
@pytest.mark.parametrize("junk", ["", "é\x80ÿ", "t=1,v1=é", "ts=9;h1=", "=" * 50, "v1,é v1,"])
def test_junk_in_headers_is_a_wrong_signature(provider: str, junk: str) -> None:
    """A header with bytes that are not ASCII is a failed signature, never a crash."""
    what = SENDERS[provider].sign(SENDERS[provider].body, SENDERS[provider].secret, 1e9)
    headers = {name.lower(): junk for name in what.headers}
    arrival = Arrival("POST", URL, headers, what.body.replace(b"ttt", b"uuu"), 1e9)
    assert not CHECKS[provider](arrival, SENDERS[provider].secret)


@pytest.mark.parametrize("provider", ["sendgrid", "standard-webhooks"])
@pytest.mark.parametrize("secret", ["not base64 !!", "whsec_", "whsec_YQ==", "whpk_", "AAAA"])
async def test_a_secret_that_makes_no_sense_is_refused(
    hub: Hub, provider: str, secret: str
) -> None:
    """An empty key would let anybody sign."""
    given = {"name": "x", "provider": provider, "signing_secrets": [secret]}
    answer = await hub.call("POST", "/v1/sources", given)
    assert (answer.status, answer.fields) == (400, ["signing_secrets"])
    unsigned = await hub.source(provider=provider, verification={"mode": "none"})
    patched = await hub.call("PATCH", f"/v1/sources/{unsigned}", {"signing_secrets": [secret]})
    assert (patched.status, patched.fields) == (400, ["signing_secrets"])


async def test_an_empty_secret_that_another_service_wrote_is_none(hub: Hub) -> None:
    user = (await hub.relay.store.scan(User)).items[0]
    await hub.relay.store.put(
        Source(
            source_id="src_empty",
            user_id=user.user_id,
            name="Theirs",
            provider="github",
            signing_secret="",
            created_at="2026-01-01T00:00:00Z",
        )
    )
    forged = SENDERS["github"].sign(b"{}", "", 0)
    assert (await send(hub, "src_empty", forged)).status == 401


@pytest.mark.parametrize("body", [b"\xff&Amount=999", b"&".join([b"a=1"] * 5001)])
async def test_a_form_that_cannot_be_read_is_not_an_empty_one(hub: Hub, body: bytes) -> None:
    source_id = await source(hub, "twilio")
    empty = SENDERS["twilio"].sign(b"", SENDERS["twilio"].secret, 0)
    assert (await send(hub, source_id, Signed(empty.headers, body))).status == 401


@pytest.mark.parametrize("rest", ["/plain", "/a%20b", "/a%2Fb", "/caf%C3%A9"])
async def test_the_url_is_signed_as_it_was_asked_for(hub: Hub, rest: str) -> None:
    source_id = await source(hub, "square")
    sender = SENDERS["square"]
    digest = hmac.new(sender.secret.encode(), (URL + rest).encode() + b"{}", "sha256").digest()
    headers = {"x-square-hmacsha256-signature": base64.b64encode(digest).decode()}
    async with aiohttp.ClientSession() as http:
        url = yarl.URL(f"{hub.server.url}/in/{source_id}{rest}", encoded=True)
        async with http.post(url, data=b"{}", headers=headers) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("mailgun", b'{"signature": {"timestamp": "\xff", "token": "t", "signature": "s"}}'),
        ("linear", b'{"webhookTimestamp": "\xff"}'),
        ("linear", b"[" * 100_000),
    ],
)
async def test_bodies_that_cannot_be_read_are_not_signed(
    hub: Hub, provider: str, body: bytes
) -> None:
    source_id = await source(hub, provider)
    assert (await hub.send(source_id, body)).status == 401


async def test_several_signatures_in_one_header(hub: Hub) -> None:
    """A provider that rotates its own secret signs with both."""
    old = signed(hub, "stripe", "whsec_old").headers["Stripe-Signature"]
    new = signed(hub, "stripe").headers["Stripe-Signature"].partition(",")[2]
    what = Signed({"Stripe-Signature": f"{old},{new}"}, SENDERS["stripe"].body)
    assert (await send(hub, await source(hub, "stripe"), what)).status == 200


async def test_twilio_signs_json_by_its_hash(hub: Hub) -> None:
    source_id = await source(hub, "twilio")
    good = twilio_json(b'{"a": 1}', SENDERS["twilio"].secret, 0)
    assert (await send(hub, source_id, good)).status == 200
    good.body = b'{"a": 2}'
    assert (await send(hub, source_id, good)).status == 401


async def test_twilio_may_sign_the_default_port(hub: Hub) -> None:
    sender = SENDERS["twilio"]
    source_id = await hub.source(
        provider="twilio",
        signing_secrets=[sender.secret],
        public_url=URL.replace("example.com", "example.com:443"),
    )
    assert (await send(hub, source_id, signed(hub, "twilio"))).status == 200


async def test_svix_headers_are_known_too(hub: Hub) -> None:
    sender = SENDERS["standard-webhooks"]
    source_id = await source(hub, "standard-webhooks")
    what = svix_sender(sender.body, sender.secret, hub.clock())
    assert (await send(hub, source_id, what)).status == 200


async def test_ed25519_signatures_of_the_standard(hub: Hub) -> None:
    key = Ed25519PrivateKey.generate()
    public = "whpk_" + base64.b64encode(key.public_key().public_bytes_raw()).decode()
    source_id = await source(hub, "standard-webhooks", public)
    stamp = str(int(hub.clock()))
    signature = base64.b64encode(key.sign(f"msg_2.{stamp}.".encode() + b"{}")).decode()
    headers = {"webhook-id": "msg_2", "webhook-timestamp": stamp}
    good = Signed(headers | {"webhook-signature": f"v1a,{signature}"}, b"{}")
    assert (await send(hub, source_id, good)).status == 200
    bad = Signed(headers | {"webhook-signature": f"v1,{signature}"}, b"{}")
    assert (await send(hub, source_id, bad)).status == 401


async def test_mailgun_in_a_form(hub: Hub) -> None:
    source_id = await source(hub, "mailgun")
    parts = msgspec.json.decode(signed(hub, "mailgun").body)["signature"]
    body = "&".join(f"{name}={value}" for name, value in parts.items()).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await send(hub, source_id, Signed(headers, body))).status == 200


@pytest.mark.parametrize(
    "url",
    [
        CERTIFICATE_URL.replace("https", "http"),
        CERTIFICATE_URL.replace("api.paypal.com", "api.paypal.com.example.org"),
        CERTIFICATE_URL.replace("api.paypal.com", "api.paypal.com@example.org"),
        CERTIFICATE_URL.replace("api.paypal.com", "api.paypal.com:8443"),
        CERTIFICATE_URL.replace("/v1/notifications/certs", "/x"),
        CERTIFICATE_URL + "?a=1",
        CERTIFICATE_URL + "/../../x",
        "https://[",
        "",
    ],
)
async def test_paypals_certificate_comes_from_paypal(hub: Hub, url: str) -> None:
    source_id = await source(hub, "paypal")
    what = signed(hub, "paypal")
    what.headers["PAYPAL-CERT-URL"] = url
    assert (await send(hub, source_id, what)).status == 401


async def test_a_custom_scheme_is_all_the_sources_own(hub: Hub) -> None:
    scheme = {
        "header": "X-Acme-Sig",
        "algorithm": "sha512",
        "encoding": "base64",
        "prefix": "acme=",
        "timestamp_header": "X-Acme-Time",
        "tolerance": 10,
    }
    source_id = await source(hub, "custom", "s3cret", verification=scheme)

    def sent_at(stamp: int) -> Signed:
        digest = hmac.new(b"s3cret", f"{stamp}.".encode() + b"{}", "sha512").digest()
        return Signed(
            {
                "X-Acme-Sig": "acme=" + base64.b64encode(digest).decode(),
                "X-Acme-Time": str(stamp),
            },
            b"{}",
        )

    now = int(hub.clock())
    assert (await send(hub, source_id, sent_at(now))).status == 200
    assert (await send(hub, source_id, sent_at(now - 11))).status == 401


async def test_a_header_with_fields(hub: Hub) -> None:
    """As Convoy's: the time and the body with a comma between them, several signatures."""
    scheme = {
        "header": "X-Convoy-Signature",
        "timestamp_field": "t",
        "signature_field": "v1",
        "joined_by": ",",
        "tolerance": 60,
    }
    source_id = await source(hub, "custom", "s3cret", verification=scheme)
    shown = (await hub.get(f"/v1/sources/{source_id}"))["verification"]
    assert {name: shown[name] for name in scheme} == scheme

    def sent_at(stamp: int, secret: bytes = b"s3cret", joined_by: str = ",") -> Signed:
        right = hmac.new(secret, f"{stamp}{joined_by}".encode() + b"{}", "sha256").hexdigest()
        return Signed({"X-Convoy-Signature": f"t={stamp},v1={'0' * 64},v1={right},v0=x"}, b"{}")

    now = int(hub.clock())
    assert (await send(hub, source_id, sent_at(now))).status == 200
    assert (await send(hub, source_id, sent_at(now - 60))).status == 200
    for wrong in (
        sent_at(now - 61),
        sent_at(now + 61),
        sent_at(now, b"other"),
        sent_at(now, joined_by="."),
        Signed({"X-Convoy-Signature": "t=,v1="}, b"{}"),
        Signed({"X-Convoy-Signature": sent_at(now).headers["X-Convoy-Signature"][15:]}, b"{}"),
    ):
        assert (await send(hub, source_id, wrong)).status == 401


async def test_a_header_with_fields_and_another_separator(hub: Hub) -> None:
    scheme = {"separator": ";", "timestamp_field": "ts", "signature_field": "sig"}
    source_id = await source(hub, "custom", "s3cret", verification=scheme)
    now = int(hub.clock())
    right = hmac.new(b"s3cret", f"{now}.".encode() + b"{}", "sha256").hexdigest()
    for separator, status in ((";", 200), ("; ", 200), (",", 401)):
        what = Signed({"X-Signature": f"ts={now}{separator}sig={right}"}, b"{}")
        assert (await send(hub, source_id, what)).status == status


@pytest.mark.parametrize(
    ("scheme", "field"),
    [
        ({"timestamp_field": "t"}, "verification.signature_field"),
        (
            {"timestamp_field": "t", "signature_field": "s", "timestamp_header": "X-Time"},
            "verification.timestamp_field",
        ),
        ({"signature_field": "s", "separator": "="}, "verification.separator"),
        ({"signature_field": "s", "separator": ""}, "verification.separator"),
        ({"signature_field": "a b"}, "verification.signature_field"),
    ],
)
async def test_fields_that_make_no_sense(hub: Hub, scheme: Any, field: str) -> None:
    given = {"name": "A", "signing_secrets": ["s"], "verification": scheme}
    answer = await hub.call("POST", "/v1/sources", given)
    assert (answer.status, answer.fields) == (400, [field])


@pytest.mark.parametrize("length", [24, 25, 26, 32, 64])
async def test_a_standard_secret_may_lack_its_padding(hub: Hub, length: int) -> None:
    """The reference library takes such secrets, so they are in use."""
    secret = "whsec_" + base64.b64encode(bytes(range(length))).decode().rstrip("=")
    padded = secret + "=" * (-len(secret.removeprefix("whsec_")) % 4)
    source_id = await source(hub, "standard-webhooks", secret)
    what = signed(hub, "standard-webhooks", padded)
    assert (await send(hub, source_id, what)).status == 200


def test_githubs_published_example() -> None:
    headers = {
        "x-hub-signature-256": (
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        )
    }
    arrival = Arrival("POST", URL, headers, b"Hello, World!", 0.0)
    assert CHECKS["github"](arrival, "It's a Secret to Everybody")


def test_slacks_published_example() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": (
            "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
        ),
    }
    arrival = Arrival("POST", URL, headers, body, 1531420618.0)
    assert CHECKS["slack"](arrival, "8f742231b10e8888abcd99yyyzzz85a5")


def test_sendgrids_published_example() -> None:
    body = (
        b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
        b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
        b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C'
        b'-9.0","smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>",'
        b'"timestamp":1600112492}]\r\n'
    )
    headers = {
        "x-twilio-email-event-webhook-signature": (
            "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M"
            "15TluLtEZtM="
        ),
        "x-twilio-email-event-webhook-timestamp": "1600112502",
    }
    key = (
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62g"
        "w+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
    )
    assert CHECKS["sendgrid"](Arrival("POST", URL, headers, body, 1600112502.0), key)


def test_squares_sdk_agrees() -> None:
    from square.utils.webhooks_helper import verify_signature

    what = SENDERS["square"].sign(SENDERS["square"].body, "a key", 0.0)
    assert verify_signature(
        request_body=what.body.decode(),
        signature_header=what.headers["x-square-hmacsha256-signature"],
        signature_key="a key",
        notification_url=URL,
    )
