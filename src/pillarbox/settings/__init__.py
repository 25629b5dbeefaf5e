"""Settings: frozen values, from flags, environment, `pillarbox.toml` and defaults, each with where it came from."""

from pillarbox.settings.settings import Settings, Shown
from pillarbox.settings.tables import (
    HealthSettings,
    InboxSettings,
    OutboxSettings,
    RelaySettings,
    RetentionSettings,
)

__all__ = [
    "HealthSettings",
    "InboxSettings",
    "OutboxSettings",
    "RelaySettings",
    "RetentionSettings",
    "Settings",
    "Shown",
]
