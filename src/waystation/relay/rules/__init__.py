"""Rules: which webhooks a connection wants, and what it makes of them."""
