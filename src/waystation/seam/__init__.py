"""The seam that systems plug into: what one brings, and what it is given to work with."""

from waystation.seam.callers import (
    OPERATORS,
    PUBLIC,
    USERS,
    Callers,
    Permission,
    Principal,
    Role,
    needs,
)
from waystation.seam.commands import Call, Commands
from waystation.seam.http import Door, Headers, Request, Response, json_response
from waystation.seam.jobs import Job, every, pause
from waystation.seam.system import (
    Check,
    Offer,
    Parts,
    Running,
    System,
    Watcher,
    merged,
    queues_of,
    settings_of,
    tables_of,
)

__all__ = [
    "OPERATORS",
    "PUBLIC",
    "USERS",
    "Call",
    "Callers",
    "Check",
    "Commands",
    "Door",
    "Headers",
    "Job",
    "Offer",
    "Parts",
    "Permission",
    "Principal",
    "Request",
    "Response",
    "Role",
    "Running",
    "System",
    "Watcher",
    "every",
    "json_response",
    "merged",
    "needs",
    "pause",
    "queues_of",
    "settings_of",
    "tables_of",
]
