"""Waystation: where events stop on their way."""
