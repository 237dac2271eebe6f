"""The reference: pgbench doing a turn's work by hand, on akter's own tables, keys and columns, and over the same kind of socket.

Five statements, each prepared and each a round trip: begin; lock the generation row as akter does; read state and receipt; write
receipt and state in one statement; commit. pgbench knows the routing key of every actor, so the rows are the very ones akter uses.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from akter.embedded import binaries
from akter.errors import ConfigurationError
from benchmarks.measure import Run, run_of

KEY = "bucket, routing_key, tenant_id, actor_type, actor_id"
THIS = ":bucket, :routing, 'default', :kind, :key"
# As long as the ids that akter mints, and as random.
COMMAND = "('v1.1796000000000.1796086400000.' || :one::text || :two::text)"
HASH = "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c"
CALLER = '["System","process",null,null]'

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
LOCK = f"""INSERT INTO :schema.actor_generations ({KEY}) VALUES ({THIS})
ON CONFLICT ({KEY}) DO UPDATE SET generation = actor_generations.generation WHERE false;"""
READ = f"""SELECT g.generation, g.created, g.event_sequence, s.value::text, s.version, s.payload_version,
  r.command, r.payload_hash, r.caller_key, r.outcome
FROM :schema.actor_generations g
LEFT JOIN :schema.actor_state s USING ({KEY})
LEFT JOIN :schema.actor_receipts r ON (r.bucket, r.routing_key, r.tenant_id, r.actor_type, r.actor_id, r.command_id)
  = (g.bucket, g.routing_key, g.tenant_id, g.actor_type, g.actor_id, {COMMAND})
WHERE (g.bucket, g.routing_key, g.tenant_id, g.actor_type, g.actor_id) = ({THIS});"""
WRITE = f"""WITH kept AS (INSERT INTO :schema.actor_receipts
  ({KEY}, command_id, command, payload_hash, caller_key, outcome, expires_at_ms, started_at_ms, committed_at_ms)
  VALUES ({THIS}, {COMMAND}, :command, '{HASH}', '{CALLER}', '{{"ok":1}}', 1796086400000, 1796000000000,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
INSERT INTO :schema.actor_state ({KEY}, value, version, payload_version) VALUES ({THIS}, (:value)::json, 1, 0)
ON CONFLICT ({KEY}) DO UPDATE
SET value = excluded.value, version = actor_state.version + 1, payload_version = excluded.payload_version;"""
COMMIT = "COMMIT;"
STATE = f"SELECT value::text, version, payload_version FROM :schema.actor_state WHERE ({KEY}) = ({THIS});"

TURN = (BEGIN, LOCK, READ, WRITE, COMMIT)


def find() -> Path:
    """The pgbench to use: `$PGBENCH`, the one on the path, or one that came with a PostgreSQL; raises `ConfigurationError`."""
    for candidate in _candidates():
        if os.access(candidate, os.X_OK):
            return candidate
    raise ConfigurationError("No pgbench was found: install PostgreSQL's client programs, or set PGBENCH to it.")


def _candidates() -> Iterator[Path]:
    if told := os.environ.get("PGBENCH"):
        yield Path(told)
        return
    if found := shutil.which("pgbench"):
        yield Path(found)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda path: float(path.parts[-3]), reverse=True)
    yield binaries.find() / "pgbench"


@dataclass(frozen=True, slots=True)
class Actors:
    """The actors that a script addresses: their type, what they run, and the routing keys of the ids from `first` on."""

    kind: str
    command: str
    routing: Sequence[int]
    value: str = '{"count":123456}'
    first: int = 0


class Pgbench:
    """pgbench on one database."""

    def __init__(self, url: str, schema: str, seconds: float, warm: float) -> None:
        self._url, self._schema, self._seconds, self._warm = make_url(url), schema, seconds, warm
        self.program = find()
        self.version = f"{self._run('--version').strip().removeprefix('pgbench ')} {self.program}"

    def run(self, statements: Sequence[str], actors: Actors, clients: int) -> Run:
        """Run a script in a number of clients; rate and latencies come from its log, without the first `warm` seconds."""
        with tempfile.TemporaryDirectory(prefix="akter-pgbench-") as directory:
            script = Path(directory, "script.sql")
            script.write_text(_script(statements, actors).replace(":schema", self._schema))
            self._run(
                *("--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, 2)}"),
                f"--time={math.ceil(self._warm + self._seconds)}",
                *(f"--define={name}={value}" for name, value in self._constants(actors).items()),
                *("--log", f"--log-prefix={directory}/log", f"--file={script}", self._target()),
            )
            return self._read(Path(directory))

    def _constants(self, actors: Actors) -> dict[str, str]:
        return {"kind": actors.kind, "command": actors.command, "value": actors.value}

    def _target(self) -> str:
        return self._url.set(drivername="postgresql", password=None).render_as_string()

    def _run(self, *arguments: str) -> str:
        environment = {**os.environ, **({"PGPASSWORD": str(self._url.password)} if self._url.password else {})}
        done = subprocess.run([self.program, *arguments], env=environment, capture_output=True, text=True)
        if done.returncode or "ERROR" in done.stderr:
            raise RuntimeError(f"pgbench failed:\n{done.stderr[-4000:]}")
        return done.stdout

    def _read(self, directory: Path) -> Run:
        ended: list[tuple[float, float]] = []
        for log in directory.glob("log*"):
            for line in log.read_text().splitlines():
                _, _, took, _, seconds, microseconds = line.split()[:6]
                ended.append((int(seconds) + int(microseconds) / 1e6, int(took) / 1e6))
        first = min(end - took for end, took in ended) + self._warm
        return run_of((took for end, took in ended if first <= end <= first + self._seconds), self._seconds)


def _script(statements: Sequence[str], actors: Actors) -> str:
    last = actors.first + len(actors.routing)
    lines = [
        f"\\set key random({actors.first}, {last - 1})",
        f"\\set routing {_choice(actors.routing, actors.first, actors.first, last)}",
        "\\set bucket :routing >> 56",
        "\\set one random(100000000000000000, 999999999999999999)",
        "\\set two random(100000000000000000, 999999999999999999)",
        *statements,
    ]
    return "\n".join(lines) + "\n"


def _choice(values: Sequence[int], first: int, low: int, high: int) -> str:
    """pgbench has no arrays, but a tree of 10 000 cases costs it two microseconds."""
    if high - low == 1:
        return str(values[low - first])
    middle = (low + high) // 2
    return f"case when :key < {middle} then {_choice(values, first, low, middle)} else {_choice(values, first, middle, high)} end"
