"""How a contract suite is run: a suite is a class, a rule is one of its async methods, a bench is what it is run on.

    @pytest.mark.parametrize("rule", rules_of(PublisherContract, MyBench.features))
    async def test_my_publisher(rule: str) -> None:
        await check(PublisherContract, rule, MyBench())

A bench declares its features; the rules that need others are not among its rules.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Bench(Protocol):
    """What every bench has; each suite adds what it needs."""

    async def close(self) -> None:
        """Let go of everything that was opened on the bench."""


def needs(*features: str) -> Callable[[F], F]:
    """Mark a rule that asks only those who declare these features."""

    def mark(rule: F) -> F:
        rule.needs = features  # type: ignore[attr-defined]
        return rule

    return mark


def rules_of(suite: type, features: object) -> list[str]:
    """List the rules of a suite that hold for somebody with these features."""
    rules = [name for part in reversed(suite.__mro__) for name in vars(part) if name.startswith("test_")]
    return [name for name in rules if all(getattr(features, f) for f in getattr(getattr(suite, name), "needs", ()))]


def rules_that_need(suite: type, feature: str) -> list[str]:
    """List the rules of a suite that ask for this feature: those that want a bench of their own."""
    return [name for name in dir(suite) if feature in getattr(getattr(suite, name), "needs", ())]


async def check(suite: type, rule: str, bench: Bench) -> None:
    """Run one rule on a bench and clear the bench away."""
    try:
        await getattr(suite(), rule)(bench)
    finally:
        await bench.close()
