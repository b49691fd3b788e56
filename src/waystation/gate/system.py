"""What the gate brings to the house: so far its table and its settings."""

from __future__ import annotations

from waystation.gate.settings import GateSettings
from waystation.gate.tables import TABLES
from waystation.seam import System

SYSTEM = System(name="gate", tables=TABLES, settings=GateSettings)
