"""What `@cron` may say, one key for every spelling of it, and how a wrong declaration is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest

from akter import Actor, Attempt, Job, command, cron, query
from akter.errors import DeclarationError
from akter.schedule import Every, Wall


def key(expression: str, tz: str = "UTC") -> str:
    return Wall(expression, tz, "a test").key


@pytest.mark.conformance("CRON-17")
def test_the_same_times_have_the_same_key_and_another_zone_has_another() -> None:
    assert key("0 3 * * *") == key("0 0 3 * * *") == key("00  03 1-31 1-12 0-7") == "$cron:UTC 0 3 * * *"
    assert key("*/15 9-17 * * mon-fri") == key("0,15,30,45 9,10-17 * * 5,1-4") == "$cron:UTC 0,15,30,45 9-17 * * 1-5"
    assert key("0 0 * * 7") == key("@weekly") == key("0 0 * * SUN") == "$cron:UTC 0 0 * * 0"
    assert key("30 0 3 * * *") == "$cron:UTC 30 0 3 * * *"
    assert key("0 0 L,15 * 5L") == "$cron:UTC 0 0 15,L * 5L"
    assert key("0 0 LW * 1#2,1#1") == "$cron:UTC 0 0 LW * 1#1,1#2"
    assert key("0 3 * * *", "Europe/Berlin") == "$cron:Europe/Berlin 0 3 * * *"
    assert key("0 3 * * *", "Etc/UTC") != key("0 3 * * *", "UTC"), "a zone is what it is called"
    assert Every(timedelta(minutes=5), "a test").key == Every(timedelta(seconds=300), "a test").key == "$cron:@every 300000ms"


def test_other_times_have_another_key() -> None:
    # A star in either field of days means both must match; without one, either may.
    assert key("0 0 1-31 * 1") == key("0 0 * * *")
    assert key("0 0 */2 * 1") != key("0 0 1-31/2 * 1")
    assert len({key("0 0 1 * *"), key("0 0 * * 1"), key("0 0 1 * 1"), key("0 0 L * 1")}) == 4


def test_a_key_is_short_enough_for_its_index_even_at_its_longest() -> None:
    every_other = ",".join(str(value) for value in range(0, 60, 2))
    longest = key(
        f"{every_other} {every_other} */2 1-31/2 */2 1#1,1#2,1#3,1#4,1#5,2#1,2#2,2#3,2#4,2#5,3L", "America/Argentina/ComodRivadavia"
    )
    assert 200 < len(longest) < 500


def test_a_method_with_a_schedule_is_an_internal_command_or_what_it_was_declared_to_be() -> None:
    class Shop(Actor):
        @cron("0 3 * * *", tz="Europe/Berlin")
        def alone(self) -> None: ...

        @cron(every=timedelta(hours=1))
        @command
        def above(self) -> int:
            return 1

        @command(timeout=3.0)
        @cron("0 4 * * *")
        @cron("0 5 * * *")
        def below(self) -> None: ...

    found = Shop.__akter__
    assert {name: member.mark.internal for name, member in found.members.items()} == {"alone": True, "above": False, "below": False}
    assert found.members["below"].mark.timeout == 3.0
    assert {key: entry.command.name for key, entry in found.schedules.items()} == {
        "$cron:Europe/Berlin 0 3 * * *": "alone",
        "$cron:@every 3600000ms": "above",
        "$cron:UTC 0 4 * * *": "below",
        "$cron:UTC 0 5 * * *": "below",
    }
    plain = Shop()
    assert plain.above() == 1

    class Branch(Shop):
        """Has the schedules of the class it extends."""

    assert set(Branch.__akter__.schedules) == set(found.schedules)


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "four fields": (("0 3 * *",), {}, r"'0 3 \* \*' is no cron expression .Wrong number of fields.: five fields, minute, hour"),
    "minute 61": (("61 3 * * *",), {}, "Bad minute"),
    "another library's zone": (("CRON_TZ=UTC 0 3 * * *",), {}, "is no cron expression"),
    "nothing": (("",), {}, "is no cron expression"),
    "31 February": (("0 0 31 2 *",), {}, "Bad day-of-month"),
    "a first that is a fifth Monday": (("0 0 */31 * 1#5",), {}, "never comes: no such day exists"),
    "unknown zone": (("0 3 * * *",), {"tz": "Europe/Nowhere"}, "there is no time zone 'Europe/Nowhere': tz= takes an IANA name"),
    "empty zone": (("0 3 * * *",), {"tz": ""}, "there is no time zone ''"),
    "this machine's zone": (("0 3 * * *",), {"tz": "localtime"}, "there is no time zone 'localtime'"),
    "a path": (("0 3 * * *",), {"tz": "../etc/passwd"}, "there is no time zone"),
    "an offset": (("0 3 * * *",), {"tz": "+02:00"}, r"not the offset '\+02:00'"),
    "an offset with a name": (("0 3 * * *",), {"tz": "Etc/GMT-3"}, "not the offset"),
    "an offset as timedelta": (("0 3 * * *",), {"tz": timedelta(hours=2)}, "not the offset"),
    "too often": ((), {"every": timedelta(milliseconds=999)}, "from one second to 100 years, in whole milliseconds"),
    "microseconds": ((), {"every": timedelta(seconds=1, microseconds=5)}, "in whole milliseconds"),
    "too seldom": ((), {"every": timedelta(days=40_000)}, "to 100 years"),
    "a number": ((), {"every": 60}, r"every= takes a timedelta, such as timedelta\(minutes=5\), not 60"),
    "neither": ((), {}, "say either an expression"),
    "both": (("0 3 * * *",), {"every": timedelta(hours=1)}, "say either an expression"),
    "an interval in a zone": ((), {"every": timedelta(hours=1), "tz": "UTC"}, "say either an expression"),
    "no text": ((5,), {}, "an expression is text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_refused_where_it_stands(name: str) -> None:
    args, kwargs, said = WRONG[name]
    with pytest.raises(DeclarationError, match=said) as refused:

        class Shop(Actor):
            @cron(*args, **kwargs)
            def sweep(self) -> None: ...

    assert "Shop.sweep" in str(refused.value)


def test_a_schedule_runs_a_command_without_arguments() -> None:
    with pytest.raises(DeclarationError, match=r"Shop.sweep: a command that @cron runs takes no arguments but `due: datetime`"):

        class Shop(Actor):
            @cron("0 3 * * *")  # type: ignore[arg-type]
            def sweep(self, room: str) -> None: ...

    with pytest.raises(DeclarationError, match=r"takes no arguments"):

        class Store(Actor):
            @cron("0 3 * * *")
            @command
            def sweep(self, due: datetime, room: str = "all") -> None: ...

    for wrong in (str, date):
        with pytest.raises(DeclarationError, match=r"but `due: datetime`"):

            class Booth(Actor):
                @cron("0 3 * * *")  # type: ignore[arg-type]
                def sweep(self, due: wrong) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(DeclarationError, match=r"Stall.look: @cron runs a command, and this is a query"):

        class Stall(Actor):
            @cron("0 3 * * *")
            @query
            def look(self) -> int:
                return 1


def test_a_schedule_stands_once_in_a_class_however_it_is_spelt() -> None:
    with pytest.raises(DeclarationError, match=r"Shop.wash: `UTC 0 3 \* \* \*` runs sweep already"):

        class Shop(Actor):
            @cron("0 3 * * *")
            def sweep(self) -> None: ...

            @cron("0 0 3 * * *")
            def wash(self) -> None: ...

    with pytest.raises(DeclarationError, match=r"runs sweep already"):

        class Store(Actor):
            @cron("0 3 * * *")
            @cron("00 03 * * *")
            def sweep(self) -> None: ...


def call_out(attempt: Attempt) -> str:
    """Call."""
    return "called"


def test_a_schedule_goes_on_a_method_that_may_be_a_command() -> None:
    with pytest.raises(DeclarationError, match="it goes on a plain method"):

        class Shop(Actor):
            @cron("0 3 * * *")
            @property
            def sweep(self) -> None: ...

    with pytest.raises(DeclarationError, match='@cron on .*sweep: it says when, @cron\\("0 3'):

        class Store(Actor):
            @cron
            def sweep(self) -> None: ...

    with pytest.raises(DeclarationError, match="takes no arguments"):

        class Stall(Actor):
            call = Job(call_out)

            @cron("0 3 * * *")
            @call.on_success
            def called(self, said: str) -> None: ...

    with pytest.raises(DeclarationError, match=r"it replaces a command of a base class; mark it @command too"):

        class Base(Actor):
            @cron("0 3 * * *")
            def sweep(self) -> None: ...

        class Derived(Base):
            def sweep(self) -> None: ...
