"""The incremental page cache."""
