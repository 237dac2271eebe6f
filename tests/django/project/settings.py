"""Settings for the database that the environment names; `orders` is a second alias of it, `other` another database."""

from __future__ import annotations

import os
import sys

import psycopg
from sqlalchemy.engine import make_url


def database(url: str) -> dict[str, object]:
    found = make_url(url)
    options = {name: value for name, value in found.query.items() if name not in ("host", "port")}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found.database,
        "USER": found.username or "",
        "PASSWORD": found.password or "",
        "HOST": found.host or found.query.get("host", ""),
        "PORT": found.port or found.query.get("port", ""),
        "OPTIONS": {**options, "cursor_factory": psycopg.ClientCursor} if os.environ.get("TEST_CLIENT_CURSOR") else options,
        "ATOMIC_REQUESTS": True,
        "TEST": {"NAME": f"{found.database}_django"},
    }


TESTING = "test" in sys.argv
SECRET_KEY = "not one"
USE_TZ = True
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project.urls"
INSTALLED_APPS = ["akter.contrib.django", "project.shop"]
MIGRATION_MODULES = {}
DATABASES = {"default": database(os.environ["TEST_DATABASE_URL"])}
if "TEST_OTHER_URL" in os.environ:
    DATABASES["orders"] = {**DATABASES["default"], "ATOMIC_REQUESTS": False}
    DATABASES["other"] = database(os.environ["TEST_OTHER_URL"])
    DATABASES["lite"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
AKTER_SCHEMA = os.environ.get("AKTER_TEST_SCHEMA", "akter")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
