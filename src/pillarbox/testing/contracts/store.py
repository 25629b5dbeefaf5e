"""The contract of a store: Source, Lanes and Records, rule by rule. Whoever writes a store runs it on their bench.

@pytest.mark.parametrize("rule", rules_of(StoreContract, MyBench.features))
async def test_my_store(rule: str, tmp_path: Path) -> None:
    await check(StoreContract, rule, await MyBench.make(tmp_path))
"""

from pillarbox.testing.contracts.store_bench import LEASE, StoreBench, StoreFeatures
from pillarbox.testing.contracts.store_canaries import CanaryRules
from pillarbox.testing.contracts.store_lanes import LanesRules
from pillarbox.testing.contracts.store_mending import MendingRules
from pillarbox.testing.contracts.store_parking import ParkingRules
from pillarbox.testing.contracts.store_pauses import PauseRules
from pillarbox.testing.contracts.store_pruning import PruneRules
from pillarbox.testing.contracts.store_reading import ReadingRules
from pillarbox.testing.contracts.store_replaying import ReplayingRules
from pillarbox.testing.contracts.store_seeing import SeeingRules

__all__ = ["LEASE", "StoreBench", "StoreContract", "StoreFeatures"]


class StoreContract(
    ReadingRules,
    ParkingRules,
    LanesRules,
    PauseRules,
    SeeingRules,
    MendingRules,
    ReplayingRules,
    PruneRules,
    CanaryRules,
):
    """All rules."""
