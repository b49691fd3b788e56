"""The only door to the outside: an HTTP client that checks every address it connects to."""

from waystation.outbound.client import Outbound, Reply
from waystation.outbound.guard import MAX_URL, AddressRefused, Guard
from waystation.outbound.waits import seconds_asked

__all__ = ["MAX_URL", "AddressRefused", "Guard", "Outbound", "Reply", "seconds_asked"]
