"""Our signatures are botocore's."""

from __future__ import annotations

from datetime import UTC, datetime

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.aws.signing import Signer

CONTENT_TYPE = "application/x-amz-json-1.0"
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=200),
    token=st.one_of(st.none(), printable),
    secret=printable,
    service=st.sampled_from(["dynamodb", "sqs"]),
    region=st.sampled_from(["eu-west-1", "us-gov-west-1"]),
    host=st.sampled_from(["dynamodb.eu-west-1.amazonaws.com", "127.0.0.1:8000"]),
)
def test_the_same_signature_as_botocore(
    body: bytes,
    token: str | None,
    secret: str,
    service: str,
    region: str,
    host: str,
) -> None:
    credentials = Credentials("AKIDEXAMPLE", secret, token)
    target = "DynamoDB_20120810.GetItem"
    request = AWSRequest(
        "POST",
        f"https://{host}/",
        headers={"Content-Type": CONTENT_TYPE, "X-Amz-Target": target, "Host": host},
        data=body,
    )
    SigV4Auth(credentials, service, region).add_auth(request)
    theirs = str(request.headers["X-Amz-Date"])
    at = datetime.strptime(theirs, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    ours = Signer(service, region, host).headers(
        credentials.get_frozen_credentials(), CONTENT_TYPE, target, body, at
    )
    assert ours["x-amz-date"] == theirs
    assert ours["authorization"] == request.headers["Authorization"]


def test_the_key_of_the_day_is_not_kept_for_another_secret() -> None:
    signer = Signer("dynamodb", "eu-west-1", "example.com")
    signatures = set()
    for secret in ("one", "two", "one"):
        credentials = Credentials("AKID", secret).get_frozen_credentials()
        signed = signer.headers(credentials, CONTENT_TYPE, "T", b"", 1_700_000_000)
        signatures.add(signed["authorization"])
    assert len(signatures) == 2
