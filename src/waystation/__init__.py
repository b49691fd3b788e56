"""Waystation: where events stop on their way."""

__version__ = "0.1.0"
