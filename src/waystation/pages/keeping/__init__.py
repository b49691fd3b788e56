"""Where pages are kept: rows, bodies and memory, leases and purges."""
