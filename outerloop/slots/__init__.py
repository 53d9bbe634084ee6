"""Identity (determinants to digest), the slot directory, reading results. Knows no database and no cluster.

Import from here: `Determinants`, `SlotDirectory`, `Result`, `Claim`, `Pin`, `StateRoot`.
"""

from outerloop.slots.directory import Claim, Pin, Result, SlotDirectory
from outerloop.slots.identity import Determinants, canonical_json, digest_of
from outerloop.slots.state import StateRoot

__all__ = [
    "Claim",
    "Determinants",
    "Pin",
    "Result",
    "SlotDirectory",
    "StateRoot",
    "canonical_json",
    "digest_of",
]
