"""The revision akter_0008."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from akter.contrib.django.operations import AlembicRevision


class Migration(migrations.Migration):
    """See `akter.migrations`."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("akter", "0007_ages")]
    operations: ClassVar[list[AlembicRevision]] = [AlembicRevision("akter_0008")]
