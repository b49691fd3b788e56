"""Support-conversation middleware: what a decider, or an order lookup, of your own works with."""

from waystation.desk.deciding.decisions import Decider, Decision, Message, Order, OrderLookup
from waystation.desk.deciding.evaluation import Evaluation, Labelled, evaluate
from waystation.desk.deciding.rules import Rules, load_rules

__all__ = [
    "Decider",
    "Decision",
    "Evaluation",
    "Labelled",
    "Message",
    "Order",
    "OrderLookup",
    "Rules",
    "evaluate",
    "load_rules",
]
