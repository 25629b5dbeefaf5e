"""Defects: memory stores that are broken on purpose, each with the rules of the contract that must notice it.

A rule that no defect breaks would be a rule that cannot fail; the tests see to it that there is none. Most of them are
mistakes that somebody who writes a store makes in the first draft; the files follow those of the rules.
"""

from pillarbox.testing.contracts import (
    defects_store_blocking,
    defects_store_canaries,
    defects_store_finding,
    defects_store_lanes,
    defects_store_mending,
    defects_store_parking,
    defects_store_pauses,
    defects_store_pruning,
    defects_store_reading,
    defects_store_replaying,
    defects_store_seeing,
)
from pillarbox.testing.contracts.store_defect import Broken, StoreDefect

__all__ = ["DEFECTS", "Broken", "StoreDefect"]

DEFECTS = [
    *defects_store_reading.DEFECTS,
    *defects_store_parking.DEFECTS,
    *defects_store_blocking.DEFECTS,
    *defects_store_lanes.DEFECTS,
    *defects_store_pauses.DEFECTS,
    *defects_store_seeing.DEFECTS,
    *defects_store_finding.DEFECTS,
    *defects_store_mending.DEFECTS,
    *defects_store_replaying.DEFECTS,
    *defects_store_pruning.DEFECTS,
    *defects_store_canaries.DEFECTS,
]
