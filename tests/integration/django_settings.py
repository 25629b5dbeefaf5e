"""Django, set up for tests without a project: databases are added as they are needed."""

import uuid
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connections, transaction

__all__ = ["connections", "django_database", "transaction"]

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, USE_TZ=True)
    django.setup()


def django_database(where: str) -> str:
    """Name a database to Django: a PostgreSQL by its URL, or a SQLite by its file; give its alias."""
    alias = f"shop_{uuid.uuid4().hex}"
    if where.startswith("postgresql:"):
        url = urlsplit(where)
        named = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": url.username or "",
            "HOST": url.hostname or "",
            "PORT": str(url.port or ""),
        }
    else:
        named = {"ENGINE": "django.db.backends.sqlite3", "NAME": where}
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: named})[alias]
    return alias
