"""AWS signature version 4 for JSON calls.

Signs exactly the headers it makes, keeps the day's key, and so takes about half the time of a
general signer.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_ALGORITHM = "AWS4-HMAC-SHA256"


class Signer:
    """Signs POST requests to one service in one region."""

    def __init__(self, service: str, region: str, host: str, path: str = "/") -> None:
        self._service = service
        self._region = region
        self._host = host
        self._path = path
        self._day_key: tuple[str, str, bytes] = ("", "", b"")

    def headers(
        self,
        credentials: ReadOnlyCredentials,
        content_type: str,
        target: str,
        body: bytes,
        now: float,
    ) -> dict[str, str]:
        """The headers of a signed request."""
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        signed = {"content-type": content_type, "host": self._host, "x-amz-date": stamp}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        signed["x-amz-target"] = target
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        request = f"POST\n{self._path}\n\n{lines}\n{names}\n{sha256(body).hexdigest()}"
        day = stamp[:8]
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        key = self._key(day, credentials.secret_key or "")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _key(self, day: str, secret: str) -> bytes:
        if self._day_key[:2] != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (day, secret, key)
        return self._day_key[2]
