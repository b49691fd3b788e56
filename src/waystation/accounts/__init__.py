"""Who is calling: sign-up, keys, sessions and plans."""

from waystation.accounts.plans import PLANS, Limits
from waystation.accounts.service import Accounts
from waystation.accounts.settings import AccountSettings
from waystation.accounts.tables import Identity, Plan, User, main

__all__ = ["PLANS", "AccountSettings", "Accounts", "Identity", "Limits", "Plan", "User", "main"]
