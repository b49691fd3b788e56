"""The webhook gateway."""
