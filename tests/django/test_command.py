"""`manage.py akter` is the command `akter`, on a database of the settings."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

import pytest

HERE = __import__("pathlib").Path(__file__).parent


def test_it_works_on_the_database_of_an_alias(project: Any) -> None:
    checked = project.manage("akter", "migrate", "--check")
    assert checked.code == 0, checked.err
    other = project.manage("akter", "--database", "other", "migrate", "--check")
    assert other.code == 1
    assert "has no akter" in other.out + other.err
    assert project.manage("akter", "--database", "other", "migrate").out.startswith("akter: created schema")
    lite = project.manage("akter", "--database", "lite", "status")
    assert lite.code != 0
    assert "akter needs PostgreSQL, and DATABASES['lite'] is sqlite" in lite.err


def test_exit_codes_and_help_are_akters(project: Any) -> None:
    assert project.manage("akter", "nonsense").code == 2
    assert "Usage: manage.py akter migrate" in project.manage("akter", "migrate", "--help").out
    assert "Durable actors on PostgreSQL" in project.manage("akter").out
    status = project.manage("akter", "status")
    assert status.code == 0, status.err
    project.python(
        "from django.core.management import call_command\ncall_command('akter', 'migrate')\nassert 'AKTER_SCHEMA' not in os.environ"
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_it_runs_a_runner_with_the_project_loaded(project: Any, processes: int) -> None:
    more = ("--processes", str(processes)) if processes > 1 else ()
    command = [sys.executable, "project/manage.py", "akter", "run", "project.shop.actors:app", "--poll", "0.2", *more]
    with subprocess.Popen(command, env=project.environment, cwd=HERE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        serving = 0
        said = ""
        for line in running.stderr:
            said += line
            serving += bool(re.search("serves Customer", line))
            if serving == processes:
                break
        assert serving == processes, said
        project.python("""
import time
with transaction.atomic():
    id = app.within(connection).send(ada.ordered)
end = time.monotonic() + 30
while True:
    try:
        assert app.outcome(ada, id) == 1
        break
    except LookupError:
        assert time.monotonic() < end, "nobody ran it"
        time.sleep(0.05)
""")
        running.send_signal(signal.SIGTERM)
        said += running.stderr.read()
        assert running.wait(60) == 0, said
