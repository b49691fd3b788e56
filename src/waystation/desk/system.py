"""What the desk brings to the house: so far its tables and its settings."""

from __future__ import annotations

from waystation.desk.settings import DeskSettings
from waystation.desk.tables import TABLES
from waystation.seam import System

SYSTEM = System(name="desk", tables=TABLES, settings=DeskSettings)
