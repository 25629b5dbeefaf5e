"""Defects: memory brokers that are broken on purpose, each with the rules of the two contracts that must notice it.

A rule that no defect breaks would be a rule that cannot fail; the tests see to it that there is none.
"""

from pillarbox.testing.contracts import (
    defects_broker_publisher,
    defects_broker_storing,
    defects_broker_subscriber,
)
from pillarbox.testing.contracts.broker_defect import Broken, Defect

__all__ = ["DEFECTS", "Broken", "Defect"]

DEFECTS = [
    *defects_broker_storing.DEFECTS,
    *defects_broker_publisher.DEFECTS,
    *defects_broker_subscriber.DEFECTS,
]
