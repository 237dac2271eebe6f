from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("akter", "0001_actors"),)
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
            ],
        ),
    )
