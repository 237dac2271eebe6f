"""What the commands refuse, and that they say what to do instead of showing SQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import click.testing
import pytest
import sqlalchemy
from shop import Parcel
from sqlalchemy import make_url

from akter import Runner
from akter.app import Akter
from akter.cli import main
from akter.errors import ConfigurationError, PayloadInvalid, SchemaMissing
from akter.operating import Operator
from akter.testing import settle

Invoke = Callable[..., click.testing.Result]

LOOKING = [("status",), ("status", "--json"), ("health",), ("doctor",), ("outbox", "list"), ("outbox", "list", "some-id")]
CHANGING = [
    ("outbox", "discard", "some-id", "--yes"),
    ("outbox", "redirect", "some-id", "--id", "p"),
    ("pause", "intents"),
    ("pause", "intents", "--type", "Parcel"),
    ("resume", "intents"),
]


@pytest.fixture
def cli(environment: dict[str, str]) -> Invoke:
    def invoke(*arguments: str, **more: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, arguments, env={**environment, **more})

    return invoke


@pytest.mark.parametrize("command", [*LOOKING, *CHANGING], ids=" ".join)
def test_without_akters_tables_every_command_names_the_one_that_makes_them(cli: Invoke, command: tuple[str, ...]) -> None:
    said = cli("--schema", "nothing_here", *command)
    assert said.exit_code == 1
    assert said.output == ("Error: the database has no akter tables in schema nothing_here: run `akter --schema nothing_here migrate`\n")


def test_a_table_that_is_gone_is_said_as_what_it_is(cli: Invoke, rows: Callable[..., list[Any]]) -> None:
    rows("DROP TABLE {akter}.actor_runners")
    said = cli("status")
    assert said.exit_code == 1
    assert "but without actor_runners." in said.output
    assert "a revision was skipped, or a table was changed by hand" in said.output


def test_a_role_without_grants_is_told_of_them(cli: Invoke, rows: Callable[..., list[Any]], akter_database: str) -> None:
    role = f"looks_on_{uuid4().hex[:6]}"
    rows(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    url = make_url(akter_database).set(username=role, password="x").render_as_string(hide_password=False)
    said = cli("status", AKTER_DATABASE_URL=url)
    rows(f"DROP ROLE {role}")
    assert said.exit_code == 1
    assert "run the SQL of `akter grants <role>` as the schema's owner" in said.output


def test_from_code_the_missing_tables_are_an_error_of_akters(akter_engine: sqlalchemy.Engine) -> None:
    with pytest.raises(SchemaMissing, match="run `akter --schema nothing_here migrate`"):
        Operator(akter_engine, schema="nothing_here").overview()


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize(
    "command", [("health", "--silent"), ("health", "--idle"), ("migrate", "--wait"), ("run", "x:y", "--grace")], ids=" ".join
)
def test_what_is_no_number_of_seconds_is_refused_as_wrongly_called(cli: Invoke, command: tuple[str, ...], seconds: str) -> None:
    said = cli(*command, seconds)
    assert said.exit_code == 2
    assert f"Invalid value for '{command[-1]}': {seconds}" in said.output


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, True], ids=str)
def test_from_code_too(app: Akter, operator: Operator, seconds: float) -> None:
    runner = Runner(app, listen=False)
    for call in (
        lambda: operator.health(silent=seconds),
        lambda: operator.health(idle=seconds),
        lambda: runner.drain(seconds),
        lambda: runner.stop(grace=seconds),
    ):
        with pytest.raises(ConfigurationError, match="is seconds between 0 and 2147483, not"):
            call()
    assert runner.stop().clean


def test_a_message_that_is_not_there_is_no_good_news(cli: Invoke, app: Akter) -> None:
    said = cli("outbox", "list", "no-such-id")
    assert (said.exit_code, said.output) == (
        1,
        "Error: there is no message no-such-id in the outbox: it was delivered, cancelled or discarded\n",
    )
    sent = app.send(app.actor(Parcel, "p").move)
    assert cli("outbox", "list", sent).exit_code == 0
    # It is there, only not for this reason.
    other = cli("outbox", "list", sent, "--reason", "parked")
    assert (other.exit_code, other.output) == (0, "nothing waits\n")
    settle(app)
    assert cli("outbox", "list", sent).exit_code == 1


def test_a_type_that_nobody_knows_is_no_good_news_either(cli: Invoke, app: Akter, rows: Callable[..., list[Any]]) -> None:
    said = cli("outbox", "list", "--type", "Parcle", "--json")
    assert said.exit_code == 1
    assert said.output == "Error: nothing waits for 'Parcle', and no live runner serves such a type; served are: none\n"
    with app.engine.begin() as connection:
        app.within(connection).after(timedelta(hours=1)).send(app.actor(Parcel, "p").move)
    assert cli("outbox", "list", "--type", "Parcel").exit_code == 0
    rows("DELETE FROM {akter}.actor_outbox")
    with Runner(app, listen=False) as runner:
        runner.drain()
        served = cli("outbox", "list", "--type", "Parcel")
        assert (served.exit_code, served.output) == (0, "nothing waits\n")


ASKING: dict[str, Callable[[Operator, Any], object]] = {
    "waiting": lambda operator, value: operator.waiting(target_type=value),
    "waiting id": lambda operator, value: operator.waiting(intent_id=value),
    "lagging": lambda operator, value: operator.lagging(subscriber_type=value),
    "health": lambda operator, value: operator.health(label=value),
    "discard": lambda operator, value: operator.discard(value),
    "redirect": lambda operator, value: operator.redirect(value, to={"command": "move"}),
    "redirect to": lambda operator, value: operator.redirect("some-id", to={"target_type": value}),
    "pause": lambda operator, value: operator.pause("intents", value),
    "resume": lambda operator, value: operator.resume("intents", value),
    "actors": lambda operator, value: operator.actors(value),
    "life": lambda operator, value: operator.life(value, "p"),
    "life id": lambda operator, value: operator.life("Parcel", value),
    "life tenant": lambda operator, value: operator.life("Parcel", "p", tenant=value),
    "reset": lambda operator, value: operator.reset(value, "p"),
    "reset why": lambda operator, value: operator.reset("Parcel", "p", why=value),
    "delete": lambda operator, value: operator.delete(value, "p"),
    "skip_events": lambda operator, value: operator.skip_events(value, "Crate.told", through=1),
    "skip_events tenant": lambda operator, value: operator.skip_events("Parcel/p", "Crate.told", tenant=value, through=1),
    "forget_subscription": lambda operator, value: operator.forget_subscription(value),
    "list": lambda operator, value: operator.letters.list(actor_type=value),
    "list ids": lambda operator, value: operator.letters.list([value]),
    "retry": lambda operator, value: operator.letters.retry(job=value),
    "discard letters": lambda operator, value: operator.letters.discard([value]),
}


@pytest.mark.parametrize("asked", ASKING)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Parcel, "is the stored name of a class, not the class itself: say 'Parcel'"),
        (7, "must be text, not int: pass str(...)"),
        ("a\0b", "must not contain a NUL character"),
        ("a\udcff", "must not contain a lone surrogate"),
    ],
    ids=["class", "number", "nul", "surrogate"],
)
def test_an_operator_is_told_in_words_what_cannot_be_looked_for(operator: Operator, asked: str, value: object, said: str) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        ASKING[asked](operator, value)
    assert str(refused.value).startswith(f"{asked.split()[0]}(...): ")
    assert str(refused.value).endswith(said)


def test_findings_say_what_they_take_an_app_for(operator: Operator) -> None:
    with pytest.raises(PayloadInvalid, match=r"findings\(\.\.\.\): app is an Akter, not 5"):
        operator.findings(cast(Any, 5))


NUMBERS: dict[str, Callable[[Operator, Any], object]] = {
    "waiting(...): limit": lambda operator, value: operator.waiting(limit=value),
    "lagging(...): limit": lambda operator, value: operator.lagging(limit=value),
    "lagging(...): attempts": lambda operator, value: operator.lagging(attempts=value),
    "actors(...): limit": lambda operator, value: operator.actors("Parcel", limit=value),
    "life(...): limit": lambda operator, value: operator.life("Parcel", "p", limit=value),
    "list(...): limit": lambda operator, value: operator.letters.list(limit=value),
    "skip_events(...): through": lambda operator, value: operator.skip_events("Parcel/p", "Crate.told", through=value),
}


@pytest.mark.parametrize("asked", NUMBERS)
@pytest.mark.parametrize("value", [-1, "5", None, 1.5, True])
def test_an_operator_is_told_in_words_what_is_no_number_of_rows(operator: Operator, asked: str, value: object) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        NUMBERS[asked](operator, value)
    assert str(refused.value).startswith(f"{asked} is ")
    assert str(refused.value).endswith(f"not {value!r}")


def test_an_operator_is_told_which_words_there_are(operator: Operator) -> None:
    families = "family is one of intents, jobs, feed, control, subscription, not 'messages'"
    wrong: Any = "messages"
    with pytest.raises(PayloadInvalid, match=families):
        operator.pause(wrong)
    with pytest.raises(PayloadInvalid, match=families):
        operator.resume(wrong)
    with pytest.raises(PayloadInvalid, match="reason is one of due, .*, not 'messages'"):
        operator.waiting(reason=wrong)
    with pytest.raises(PayloadInvalid, match="after is the cursor of the last row of a page, not 'messages'"):
        operator.waiting(after=wrong)
    with pytest.raises(PayloadInvalid, match="ids is a list of job ids, not 'messages'"):
        operator.letters.retry(wrong)
    with pytest.raises(ConfigurationError, match="a redirect says what changes"):
        operator.redirect("some-id", to=wrong)
    with pytest.raises(ConfigurationError, match="takes an Engine, create_engine.* not 'messages'"):
        Operator(wrong)


def test_an_argument_that_is_no_utf8_is_refused_without_a_traceback(akter: Callable[..., Any]) -> None:
    said = akter("inspect", "Parcel", "p\udcff")
    assert (said.code, said.err) == (1, "Error: life(...): id must not contain a lone surrogate\n")
