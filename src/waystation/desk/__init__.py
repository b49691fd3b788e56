"""Support-conversation middleware."""
