"""What is installed is what is here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {"akter": "akter", "migrations": "akter/migrations", "examples": "akter/examples"}
"""Each folder that is shipped, and where it is once installed."""

TOP = ("pyproject.toml", "setup.cfg", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")

KINDS = {".py", ".typed", ".mako", ".csv"}


def shipped() -> dict[str, str]:
    """Every file that has to be in the wheel, by its place here."""
    return {
        path.relative_to(ROOT).as_posix(): f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KINDS
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from a source distribution that was built from a copy without anything left over."""
    copy = tmp_path_factory.mktemp("copy") / "akter"
    copy.mkdir()
    for name in TOP:
        shutil.copy(ROOT / name, copy)
    for name in (*FOLDERS, "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy))
    return out


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_package_is_listed_and_nothing_else() -> None:
    here = {
        ".".join(PurePosixPath(installed, path.parent.relative_to(ROOT / folder)).parts)
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == here


def test_every_module_is_in_a_package() -> None:
    assert {name for name in shipped() if name.endswith(".py") and not (ROOT / name).with_name("__init__.py").exists()} == set()


def test_every_entry_point_leads_to_a_module() -> None:
    points = {**PROJECT["project"]["scripts"], **PROJECT["project"].get("entry-points", {}).get("pytest11", {})}
    assert {name for name in points.values() if importlib.util.find_spec(name.partition(":")[0]) is None} == set()


def test_the_wheel_has_every_file_and_no_other(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(shipped().values())


def test_the_source_distribution_has_every_file(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert {*shipped(), *pages, *TOP} - names == set()


def test_the_wheel_says_what_it_is(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata


def test_the_wheel_is_whole_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel))
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(tmp_path)!r})\n"
        "import akter, akter.migrations.versions, akter.examples.ledger, akter.examples.orders\n"
        "from importlib.resources import files\n"
        "assert (files('akter.examples.ledger') / 'transfers.csv').is_file()\n"
        "assert (files('akter.examples.orders') / 'orders.csv').is_file()\n"
        "print(akter.__file__)\n"
    )
    assert run(sys.executable, "-P", "-c", program, cwd=tmp_path).strip() == str(tmp_path / "akter" / "__init__.py")
