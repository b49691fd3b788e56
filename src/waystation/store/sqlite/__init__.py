"""The embedded engine: one SQLite file, or memory for tests."""
