"""What providers' own libraries say of the webhooks that we take and refuse."""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from anymail.exceptions import AnymailWebhookValidationFailure
from anymail.webhooks.mailgun import MailgunTrackingWebhookView
from django.conf import settings
from django.test import RequestFactory

from tests.relay.senders import SENDERS, URL, Signed
from tests.support.parts import missing
from waystation.relay.receiving.signatures import CHECKS, Arrival

PROGRAM = Path(__file__).with_name("provider_sdks.mjs")
MODULES = Path(__file__).parents[2] / ".tools" / "node_modules"


def cases(provider: str) -> list[tuple[str, Signed]]:
    """A good webhook and what is wrong in one way or another, each with a secret to check it by."""
    sender = SENDERS[provider]
    good = sender.sign(sender.body, sender.secret, time.time())
    forged = sender.sign(sender.body, "another secret", time.time())
    name, signature = next(iter(good.headers.items()))
    swapped = signature.swapcase()
    return [
        (sender.secret, good),
        (sender.secret, forged),
        ("another secret", good),
        (sender.secret, Signed(good.headers, good.body + b" ")),
        (sender.secret, Signed(good.headers | {name: swapped}, good.body)),
        (sender.secret, Signed(good.headers | {name: signature[:-2]}, good.body)),
        (sender.secret, Signed(good.headers | {name: "é"}, good.body)),
        (sender.secret, Signed(good.headers | {name: ""}, good.body)),
    ]


def ours(provider: str, secret: str, what: Signed) -> bool:
    headers = {name.lower(): value for name, value in what.headers.items()}
    arrival = Arrival("POST", URL, headers, what.body, time.time())
    return CHECKS[provider](arrival, secret)


def theirs(provider: str, given: list[tuple[str, Signed]]) -> list[bool]:
    program = shutil.which("node")
    if program is None or not (MODULES / "@linear" / "sdk").is_dir():
        missing("Linear's and Shopify's SDKs", "install Node and npm, then run make setup")
    asked = [
        {
            "provider": provider,
            "secret": secret,
            "headers": {name.lower(): value for name, value in what.headers.items()},
            "body": base64.b64encode(what.body).decode(),
        }
        for secret, what in given
    ]
    answered = subprocess.run(
        [program, PROGRAM, MODULES.parent],
        input=msgspec.json.encode(asked),
        capture_output=True,
        timeout=60,
    )
    assert answered.returncode == 0, answered.stderr.decode()
    return msgspec.json.decode(answered.stdout, type=list[bool])


@pytest.mark.parametrize("provider", ["linear", "shopify"])
def test_we_take_just_what_a_providers_sdk_takes(provider: str) -> None:
    given = cases(provider)
    found = theirs(provider, given)
    assert found[0]
    assert found == [ours(provider, secret, what) for secret, what in given]
    assert True not in found[1:5]


def test_mailguns_webhooks_pass_anymail() -> None:
    if not settings.configured:
        settings.configure()

    def passes(secret: str, body: bytes) -> bool:
        request = RequestFactory().post("/", body, content_type="application/json")
        view = MailgunTrackingWebhookView(webhook_signing_key=secret)
        try:
            view.validate_request(request)
        except AnymailWebhookValidationFailure:
            return False
        return True

    sender = SENDERS["mailgun"]
    good = sender.sign(sender.body, sender.secret, time.time())
    forged = sender.sign(sender.body, "another", time.time())
    later = Signed({}, good.body.replace(b'"token":"t', b'"token":"u'))
    for what, taken in ((good, True), (forged, False), (later, False)):
        assert passes(sender.secret, what.body) is taken
        assert ours("mailgun", sender.secret, what) is taken
