"""One small signed JSON client that DynamoDB, its streams and SQS all use."""

from waystation.aws.client import AwsClient, is_throttling, wait_before
from waystation.aws.session import AwsChain, AwsSession

__all__ = ["AwsChain", "AwsClient", "AwsSession", "is_throttling", "wait_before"]
