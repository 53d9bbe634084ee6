"""Identity (determinants to digest), the slot directory, reading results. Knows no database and no cluster.

Import from here: `Determinants`, `SlotDirectory`, `Result`, `Claim`, `Pin`, `StateRoot`, `ARRAY_MAP`, `ARRAY_LOG`.
"""

from outerloop.slots.directory import Claim, Pin, Result, SlotDirectory
from outerloop.slots.identity import Determinants, canonical_json, digest_of
from outerloop.slots.state import ARRAY_LOG, ARRAY_MAP, StateRoot

__all__ = [
    "ARRAY_LOG",
    "ARRAY_MAP",
    "Claim",
    "Determinants",
    "Pin",
    "Result",
    "SlotDirectory",
    "StateRoot",
    "canonical_json",
    "digest_of",
]
