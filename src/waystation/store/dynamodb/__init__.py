"""The engine for more than one machine: DynamoDB."""
