"""A sixth system: nothing outside this folder knows of it."""
