"""The door for Django: Outbox and Inbox on the connection of `atomic()`, on PostgreSQL and SQLite. It needs no app and
no models.

PILLARBOX = {"outbox": {"schema": "public", "prefix": "pillarbox_"}}            # in settings.py, if need be
"""

from pillarbox.errors import MissingExtra

try:
    import django as _django  # noqa: F401 - what follows needs it
except ImportError as error:
    raise MissingExtra("django", "pillarbox.django") from error

from pillarbox.django.inbox import Inbox
from pillarbox.django.outbox import Outbox

__all__ = ["Inbox", "Outbox"]
