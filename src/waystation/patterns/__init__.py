"""What the systems share: ids, encryption, redaction, rate limits, leases and idempotency."""
