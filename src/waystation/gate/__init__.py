"""The Slack two-key defence."""
