"""Settings on the embedded PostgreSQL in ./data; every process that reads them starts it, or joins the one that runs."""

from __future__ import annotations

import sys

from akter.embedded import Server

server = Server("./data").start()

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": server.host,
        "PORT": server.port,
        "ATOMIC_REQUESTS": True,
    }
}
INSTALLED_APPS = ["akter.contrib.django", "akter.examples.django_shop.shop"]
ROOT_URLCONF = "akter.examples.django_shop.urls"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
SECRET_KEY = "for an example that only this machine sees"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TESTING = "test" in sys.argv
