"""What pages bring to the house: so far their table."""

from __future__ import annotations

from waystation.pages.tables import TABLES
from waystation.seam import System

SYSTEM = System(name="pages", tables=TABLES)
