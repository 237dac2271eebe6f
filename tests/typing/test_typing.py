"""The types are part of the API: what users write is accepted, what they get wrong is found, by mypy and pyright, without plugins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ("api.py", "mistakes.py")
MARK = "# expect-error"

pytestmark = pytest.mark.timeout(300)

Findings = dict[str, dict[int, str]]
"""What was found in each file, by line."""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(folder: Path) -> Findings:
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nwarn_unreachable = true\nmypy_path = {ROOT}\nfollow_imports = silent\n")
    found: Findings = {file: {} for file in FILES}
    for line in run(folder, "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", *FILES).splitlines():
        if match := re.match(r"(\w+\.py):(\d+): error: (.*)", line):
            found[match[1]][int(match[2])] = match[3]
    return found


def pyright(folder: Path) -> Findings:
    settings = {"include": ["."], "typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    said = json.loads(run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)))
    assert said["summary"]["filesAnalyzed"] >= len(FILES)
    found: Findings = {file: {} for file in FILES}
    for each in said["generalDiagnostics"]:
        if each["severity"] == "error":
            found[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    for file in FILES:
        shutil.copy(HERE / file, folder)
    found = request.param(folder)
    assert isinstance(found, dict)
    return found


def test_what_users_write_is_accepted(findings: Findings) -> None:
    assert findings["api.py"] == {}


def test_every_mistake_is_found_and_nothing_else(findings: Findings, request: pytest.FixtureRequest) -> None:
    found = findings["mistakes.py"]
    marks = (f"{MARK}:", f"{MARK}-{request.node.callspec.id}:")
    lines = (HERE / "mistakes.py").read_text(encoding="utf-8").splitlines()
    marked = {number: line.strip() for number, line in enumerate(lines, start=1) if any(mark in line for mark in marks)}
    assert len(marked) > 50
    assert {number: line for number, line in marked.items() if number not in found} == {}, "mistakes that were not found"
    assert {number: said for number, said in found.items() if number not in marked} == {}, "false alarms"
