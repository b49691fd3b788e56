"""One small signed JSON client that DynamoDB, DynamoDB Streams and SQS share."""
