"""Who is calling: sign-up, keys, sessions and plans."""

from waystation.accounts.plans import PLANS, Limits
from waystation.accounts.service import Accounts
from waystation.accounts.tables import Identity, Plan, User, main

__all__ = ["PLANS", "Accounts", "Identity", "Limits", "Plan", "User", "main"]
