"""The actors of the tests of schedules, in several versions of their code, and their rows as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from akter import Actor, Akter, Rejection, command, cron
from akter.testing import advance, inspect

HOUR, DAY, SECOND = timedelta(hours=1), timedelta(days=1), timedelta(seconds=1)
DAILY, HOURLY = "$cron:UTC 0 3 * * *", "$cron:@every 3600000ms"


class Rung:
    """Which handlers ran, for which actor, and what is to happen inside them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.times: Counter[str] = Counter()
        self.inside: Callable[[Any], None] = lambda actor: None

    def __call__(self, actor: Actor, name: str) -> None:
        self.times[f"{actor.id} {name}"] += 1
        self.inside(actor)


rung = Rung()


class Closed(Rejection):
    """The tower is closed."""


class Bell(Actor):
    """Rings at three, and every hour."""

    rings: int = 0
    stopped: bool = False

    @command
    def hang(self) -> None:
        """Does nothing but make a first turn."""

    @command
    def refuse(self) -> None:
        raise Closed

    @command
    def stop(self) -> None:
        self.stopped = True

    @cron("0 3 * * *")
    def ring(self) -> None:
        rung(self, "stopped" if self.stopped else "ring")
        self.rings += not self.stopped

    @cron(every=HOUR)
    @command
    def strike(self) -> None:
        rung(self, "strike")


class Chime(Actor, name="Bell"):
    """A later version: at three it chimes, and the hours are told no more."""

    rings: int = 0
    stopped: bool = False

    @command
    def hang(self) -> None: ...

    @command
    @cron("0 3 * * *")
    def chime(self) -> None:
        rung(self, "chime")
        self.rings += 100

    @command(internal=True)
    def ring(self) -> None:
        rung(self, "ring")


class Quiet(Actor, name="Bell"):
    """A last version, which has no schedule."""

    rings: int = 0
    stopped: bool = False

    @command
    def hang(self) -> None: ...


class Second(Actor):
    """Is told every second."""

    told: int = 0

    @command
    def begin(self) -> None: ...

    @cron(every=SECOND)
    def tell(self) -> None:
        rung(self, "tell")
        self.told += 1


class Tower(Actor):
    """Has to be built first."""

    @command(creates=True)
    def build(self, refuse: bool = False) -> None:
        if refuse:
            raise Closed

    @command
    def visit(self) -> None: ...

    @cron("0 3 * * *")
    def light(self) -> None:
        rung(self, "light")


class Sun(Actor, singleton=True):
    """There is one."""

    risen: int = 0

    @cron("0 3 * * *")
    def rise(self) -> None:
        rung(self, "rise")
        self.risen += 1

    @command
    def shine(self) -> None: ...


class Row(NamedTuple):
    """One row of a schedule. `wait`: milliseconds until it is due; `late`: since its time came."""

    actor: str
    key: str
    command: str
    wait: int
    late: int
    due_at_ms: int
    scheduled_at_ms: int
    attempts: int
    id: str
    last_error: str | None


class Rows:
    """The rows of schedules in the outbox, and the clock they are measured by."""

    def __init__(self, sql: Any) -> None:
        self._sql = sql

    @property
    def now_ms(self) -> int:
        clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + clock_offset_ms"
        return int(self._sql(f"SELECT {clock} FROM {{akter}}.actor_deployment")[0][0])

    def __call__(self, actor: str | None = None) -> list[Row]:
        now = self.now_ms
        found = self._sql(
            """SELECT actor_id, timer_key, command, due_at_ms - :now, :now - scheduled_at_ms, due_at_ms, scheduled_at_ms, attempts,
                 intent_id, last_error FROM {akter}.actor_outbox WHERE left(timer_key, 6) = '$cron:' ORDER BY actor_id, timer_key""",
            now=now,
        )
        return [row for row in (Row(*values) for values in found) if actor in (None, row.actor)]

    def of(self, key: str, actor: str = "b") -> Row:
        (row,) = [row for row in self(actor) if row.key == key]
        return row

    def when_due(self, app: Akter, key: str = DAILY, *, late: timedelta = SECOND, actor: str = "b") -> Row:
        """Move the clock to some time after the row's own, and return the row as it was."""
        row = self.of(key, actor)
        advance(app, timedelta(milliseconds=row.wait) + late)
        return row


def rings(app: Akter, actor: Any) -> int:
    return int((inspect(app, actor).state or {"rings": 0})["rings"])
