"""The Slack two-key defence."""

from waystation.gate.existence import ExistenceCheck, Refused, Unavailable, Verdict
from waystation.gate.middleware import SlackCheck, TwoKeyMiddleware

__all__ = [
    "ExistenceCheck",
    "Refused",
    "SlackCheck",
    "TwoKeyMiddleware",
    "Unavailable",
    "Verdict",
]
