"""Whether a relay leaves the broker less time than others leave the relay."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.settings.durations import write_duration


def _publish_timeout(facts: Facts) -> Iterator[Trouble]:
    relay = facts.settings.relay
    if relay.outlasts_its_lease:
        line = (
            f"relay.publish_timeout is {write_duration(relay.publish_timeout)}, and relay.lease only"
            f" {write_duration(relay.lease)}: a relay could still be publishing when another one has taken over, and"
            " order would be lost; so none starts; shorten the one or lengthen the other"
        )
        yield Trouble("problem", line)


CHECKS: Checks = {"publish timeout": _publish_timeout}
"""Of settings alone."""
