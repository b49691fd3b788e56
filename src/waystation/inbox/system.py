"""What the inbox brings to the house: so far its tables."""

from __future__ import annotations

from waystation.inbox.tables import TABLES
from waystation.seam import System

SYSTEM = System(name="inbox", tables=TABLES)
