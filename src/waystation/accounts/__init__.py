"""Accounts: who may call, with which rights, on which plan."""
