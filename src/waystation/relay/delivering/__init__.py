"""Delivering: from an event to its destinations, and what came of it."""
