"""What a message is about and who should have it: decisions, rules, and how good they are."""
