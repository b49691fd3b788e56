"""In-app notifications."""
