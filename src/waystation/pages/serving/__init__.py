"""How requests for pages are answered: from the cache, or by the origin."""
