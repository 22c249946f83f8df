"""For each alert: series on which it must fire, and neighbours on which it must stay quiet."""

from __future__ import annotations

from alert_cases.exporter import EXPORTER
from alert_cases.hardware import HARDWARE
from alert_cases.network import NETWORK
from alert_cases.training import TRAINING

CASES = HARDWARE + NETWORK + EXPORTER + TRAINING
