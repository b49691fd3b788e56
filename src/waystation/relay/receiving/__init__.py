"""Receiving: who sent this, has it come before, and is it on disk."""
