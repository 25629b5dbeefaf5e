"""The demo: a shop, a relay, a broker and a consumer on this machine, killed as they work, and judged at the end."""

from pathlib import Path

DEFAULT_EVENTS = 3_000


def run_demo(
    events: int = DEFAULT_EVENTS, seed: int | None = None, keep: Path | None = None, json: bool = False
) -> int:
    """Run the demo and give the exit code: 0 if every promise was kept, 1 if not."""
    from pillarbox.demo.program import run  # the command line imports this package to show its help; that stays cheap

    return run(events, seed, keep, json)
