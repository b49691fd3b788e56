"""A client of one AWS service that speaks JSON."""

from __future__ import annotations

import asyncio
import io
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from waystation.aws.signing import Signer
from waystation.backoff import backoff
from waystation.errors import AwsError

if TYPE_CHECKING:
    from waystation.aws.session import AwsSession

_ATTEMPTS = 8
FIRST_WAIT = 0.025
_LONGEST_WAIT = 2.0
_RETRY_BUDGET = 500
_RETRY_COST = 5
_LARGE = 512 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=3)

_THROTTLING = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "LimitExceededException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_SKEWED = frozenset({"RequestTimeTooSkewed", "InvalidSignatureException", "RequestExpired"})

encode = msgspec.json.Encoder().encode


class AwsClient:
    """Signed calls with retries.

    Throttling and refusals are always retried: the service says that it did nothing. A lost
    answer or a server's fault is retried only when the call may be carried out twice. Retries
    draw on a budget that successes refill, so that an outage does not multiply the load.
    """

    def __init__(
        self, session: AwsSession, *, service: str, signing_name: str, target: str, version: str
    ) -> None:
        self._session = session
        self._target = target
        self._content_type = f"application/x-amz-json-{version}"
        self.endpoint = session.endpoint(service)
        parts = urlsplit(self.endpoint)
        self._url = URL(self.endpoint)
        self._signer = Signer(signing_name, session.region, parts.netloc, parts.path or "/")
        self._budget = _RETRY_BUDGET
        self._skew = 0.0

    async def call(self, operation: str, request: object, *, repeatable: bool = True) -> bytes:
        """The body of a successful answer; AwsError otherwise."""
        body = encode(request)
        attempt = 0
        corrected = False
        lost = False
        while True:
            try:
                answer = await self._attempt(operation, body)
            except AwsError as error:
                attempt += 1
                retry = self._retry(error, attempt, repeatable)
                # One attempt without an answer leaves the outcome open, whatever came after.
                lost = error.unknown = lost or error.unknown
                if error.code in _SKEWED and "date" in error.details and not corrected:
                    corrected = True
                    self._correct_clock(error.details["date"])
                elif not retry:
                    raise
                else:
                    await asyncio.sleep(wait_before(attempt))
            else:
                self._budget = min(_RETRY_BUDGET, self._budget + 1)
                return answer

    async def _attempt(self, operation: str, body: bytes) -> bytes:
        if self._session.http.closed:
            raise AwsError("Closed", "the store is closed")
        credentials = await self._session.credentials()
        headers = self._signer.headers(
            credentials,
            self._content_type,
            f"{self._target}.{operation}",
            body,
            time.time() + self._skew,
        )
        try:
            # Large bodies go in pieces, so that writing them does not hold up the event loop.
            data = body if len(body) < _LARGE else io.BytesIO(body)
            async with self._session.http.post(
                self._url, data=data, headers=headers, timeout=_TIMEOUT, allow_redirects=False
            ) as response:
                answer = await response.read()
                if response.status == 200:
                    return answer
                raise _refusal(response.status, answer, response.headers.get("Date"))
        except aiohttp.ClientConnectorError as error:
            raise AwsError("Unreachable", f"{self.endpoint} cannot be reached: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"{self.endpoint} did not answer: {error or type(error).__name__}"
            raise AwsError("NoAnswer", text, unknown=True) from error

    def _retry(self, error: AwsError, attempt: int, repeatable: bool) -> bool:
        safe = error.code in _THROTTLING or error.code == "Unreachable"
        if not safe and not (error.unknown and repeatable):
            return False
        if attempt >= _ATTEMPTS or self._budget < _RETRY_COST:
            return False
        self._budget -= _RETRY_COST
        return True

    def _correct_clock(self, date: str) -> None:
        """The service knows better what time it is."""
        self._skew = parsedate_to_datetime(date).timestamp() - time.time()


def wait_before(attempt: int) -> float:
    """Seconds to wait before a further attempt."""
    return backoff(attempt, first=FIRST_WAIT, longest=_LONGEST_WAIT)


def _refusal(status: int, body: bytes, date: str | None) -> AwsError:
    try:
        details = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        details = {}
    code = str(details.get("__type", "")).rpartition("#")[2] or f"Http{status}"
    message = str(details.get("message") or details.get("Message") or "")
    if date is not None:
        details["date"] = date
    return AwsError(code, message, status=status, details=details, unknown=status >= 500)


def is_throttling(error: AwsError) -> bool:
    return error.code in _THROTTLING
