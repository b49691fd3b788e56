"""The server: HTTP in front, background work behind, and what holds them together."""
