"""The engine on DynamoDB."""

from waystation.store.dynamodb.engine import DynamoStore
from waystation.store.dynamodb.feed import changes_of
from waystation.store.dynamodb.tables import definition

__all__ = ["DynamoStore", "changes_of", "definition"]
