"""The gate, against a server that speaks Slack's API as it is documented."""
