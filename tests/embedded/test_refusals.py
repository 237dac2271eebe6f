"""What an embedded PostgreSQL refuses, and that it says what to do instead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akter.embedded import Server, binaries
from akter.errors import ConfigurationError


@pytest.fixture
def no_postgres(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """A machine without PostgreSQL."""
    for name in ("AKTER_PG_BIN", "PG_BIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(binaries, "WHEELS", {"no_such_wheel": "bin"})
    monkeypatch.setattr(binaries, "DEBIAN", place / "nowhere")


@pytest.mark.conformance("KILL-37")
def test_the_data_of_another_major_version_is_refused_with_both_versions(data: Path, ends: Callable[[int], bool]) -> None:
    with Server(data) as server:
        pass
    version = data / "pgdata" / "PG_VERSION"
    ours = version.read_text().strip()
    version.write_text("9\n")
    with pytest.raises(
        ConfigurationError, match=rf"PostgreSQL 9, and .* holds PostgreSQL {ours}: set AKTER_PG_BIN .* version 9.* pg_upgrade"
    ):
        server.start()
    version.write_text(f"{ours}\n")
    with server:
        assert server.pid


@pytest.mark.conformance("KILL-38")
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_relaxed_durability_is_refused_for_a_data_directory(place: Path, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{setting!r} may not be changed .* Server\.temporary\(\)"):
        Server(place / "data", settings={setting: "off"})
    assert not (place / "data").exists()


@pytest.mark.conformance("KILL-38")
def test_relaxed_durability_in_the_configuration_of_a_data_directory_is_refused(data: Path) -> None:
    with Server(data) as server, psycopg.connect(server.url(driver=""), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_commit = 0")
    configuration = data / "pgdata" / "postgresql.conf"
    with pytest.raises(ConfigurationError, match=r"synchronous_commit=off, .* remove synchronous_commit from .*postgresql\.auto\.conf"):
        server.start()
    configuration.with_name("postgresql.auto.conf").write_text("")
    intact = configuration.read_text()
    configuration.write_text(f"{intact}\nfsync = no\n")
    with pytest.raises(ConfigurationError, match="fsync=off"):
        server.start()
    assert not (data / "pgdata" / "postmaster.pid").exists()
    configuration.write_text(intact)
    with server:
        assert server.pid


@pytest.mark.parametrize("setting", ["port", "Listen_Addresses", "unix_socket_directories"])
def test_what_akter_decides_is_not_a_setting(place: Path, setting: str) -> None:
    with pytest.raises(ConfigurationError, match="leave it out"):
        Server(place / "data", settings={setting: "1"})
    with pytest.raises(ConfigurationError, match="leave it out"):
        Server.temporary({setting: "1"})


def test_a_setting_postgresql_does_not_know_is_reported_in_its_words(place: Path) -> None:
    server = Server(place / "data", settings={"nonsense": "1"})
    with pytest.raises(ConfigurationError, match=r'did not start (.|\n)*unrecognized configuration parameter "nonsense"'):
        server.start()
    assert not server.started


def test_a_configuration_postgresql_cannot_read_is_reported_in_its_words(data: Path) -> None:
    with Server(data) as server:
        pass
    (data / "pgdata" / "postgresql.conf").write_text("what = is this")
    with pytest.raises(ConfigurationError, match=r"cannot read its configuration (.|\n)*syntax error in file"):
        server.start()


@pytest.mark.parametrize("path", ["file", "file/data"])
def test_a_file_is_no_data_directory(place: Path, path: str) -> None:
    (place / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file.* is a file: name a directory"):
        Server(place / path).start()


@pytest.mark.parametrize("name", ['"quoted"', "$HOME", "`id`", "two\nlines"])
def test_a_name_that_the_shell_would_change_is_refused(place: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="leave out quotes, dollars and backslashes"):
        Server(place / name).start()
    assert not list(place.iterdir())


def test_a_directory_with_other_things_is_left_alone(place: Path) -> None:
    (place / "project").mkdir(mode=0o755)
    (place / "project" / "README").touch()
    with pytest.raises(ConfigurationError, match="holds other things, such as 'README': name a new or empty directory"):
        Server(place / "project").start()
    assert os.listdir(place / "project") == ["README"]
    assert (place / "project").stat().st_mode & 0o777 == 0o755


def test_a_cluster_made_by_other_means_is_left_alone(data: Path) -> None:
    with Server(data):
        pass
    with pytest.raises(ConfigurationError, match=r"cluster made by other means: .* give akter its URL"):
        Server(data / "pgdata").start()


def test_a_server_that_is_not_started_has_no_url(place: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not started: use `with server:` or call start\(\)"):
        Server(place / "data").url()


@pytest.mark.usefixtures("no_postgres")
def test_a_machine_without_postgresql_is_told_where_to_get_it(place: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'akter\[embedded\]', or set AKTER_PG_BIN"):
        Server(place / "data").start()


def test_a_wrong_place_for_postgresql_is_not_ignored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKTER_PG_BIN", str(place))
    with pytest.raises(ConfigurationError, match=f"AKTER_PG_BIN is {place}, which holds no initdb"):
        Server(place / "data").start()


def test_programs_that_do_not_run_here_are_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("initdb", "pg_ctl", "postgres"):
        (place / program).write_text("#!/bin/sh\necho version GLIBC_9.9 not found; exit 1\n")
        (place / program).chmod(0o755)
    monkeypatch.setenv("AKTER_PG_BIN", str(place))
    with pytest.raises(ConfigurationError, match=r"does not run here(.|\n)*GLIBC_9\.9 not found"):
        Server(place / "data").start()


def test_windows_is_refused() -> None:
    code = "import sys, akter.errors\nsys.platform = 'win32'\nimport akter.embedded"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search("ConfigurationError: akter.embedded needs a POSIX system: on Windows use WSL", done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's directories are out of the reach of PostgreSQL's account")
def test_root_is_told_which_directory_is_private(place: Path) -> None:
    (place / "home").mkdir(mode=0o700)
    with pytest.raises(ConfigurationError, match=f"{place}/home is private: use a data directory elsewhere, .*`chmod o.x {place}/home`"):
        Server(place / "home" / "data").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's programs are out of the reach of PostgreSQL's account")
def test_root_runs_a_copy_of_programs_that_are_in_a_private_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = binaries.find()
    (place / "home").mkdir(mode=0o700)
    package = original.parent.parent
    shutil.copytree(original.parent, place / "home" / package.name / original.parent.name, symlinks=True)
    if package.with_name(f"{package.name}.libs").is_dir():
        shutil.copytree(package.with_name(f"{package.name}.libs"), place / "home" / f"{package.name}.libs")
    monkeypatch.setenv("AKTER_PG_BIN", str(place / "home" / package.name / original.parent.name / "bin"))
    monkeypatch.setattr(binaries, "CACHE", place / "cache")
    for _ in range(2):
        with Server(place / "data") as server:
            assert server.pid
    assert len(list((place / "cache").iterdir())) == 1


def test_the_data_of_another_account_is_refused(data: Path, ordinary: Any) -> None:
    with Server(data):
        pass
    done = ordinary.run("-c", f"from akter.embedded import Server; Server({str(data)!r}).start()")
    assert re.search(r"ConfigurationError: .*data.* \(Permission denied\): ", done.stderr)
