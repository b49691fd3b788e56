"""Support events on their way in: who sent them, what they say, and into the queue."""
