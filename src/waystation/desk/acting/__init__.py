"""What is done about a decision: the plan, the limits on it, and the calls that carry it out."""
