"""A row: what was measured, beside a reference of the same run where there is one."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    """Its name for programs, which stays."""
    name: str
    value: float
    unit: str
    reference: float | None = None
    beside: str | None = None
    """What the reference is."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    def as_dict(self) -> dict[str, Any]:
        numbers = {"value": self.value, "reference": self.reference, "ratio": self.ratio}
        rounded = {name: None if number is None else round(number, 4) for name, number in numbers.items()}
        return {"name": self.name, "unit": self.unit, **rounded, "beside": self.beside}


def written(value: float | None) -> str:
    """Write a number for people."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"
