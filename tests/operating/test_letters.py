"""Dead letters and what operators do with them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from processes import Done

from akter import Actor, Akter, AkterError, Attempt, DeadLetter, Job, NotApplied, Retry, command
from akter.operating import Operator
from akter.testing import inspect, settle

calls: list[tuple[str, str]] = []
answers: dict[str, BaseException | None] = {}


def pay(attempt: Attempt, order: str) -> None:
    calls.append((order, attempt.job_id))
    if (problem := answers.get(order)) is not None:
        raise problem


class Till(Actor):
    """Pays, and keeps how it went."""

    log: list[str] = []  # noqa: RUF012 - a state field's default is copied
    pay = Job(pay, retry=Retry(attempts=1))

    @command
    def begin(self, order: str) -> str:
        return self.enqueue(self.pay, order=order)

    @pay.on_success
    def paid(self, nothing: None) -> None:
        self.log = [*self.log, "paid"]

    @pay.on_dead_letter
    def failed(self, letter: DeadLetter) -> None:
        self.log = [*self.log, "failed"]


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.clear()
    answers.clear()


@pytest.fixture
def tills(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Till)


@pytest.fixture
def dead(tills: Akter) -> Callable[..., str]:
    """Let a payment become a dead letter, and return its job's id."""

    def make(order: str, problem: BaseException) -> str:
        answers[order] = problem
        id = tills.actor(Till, order).begin(order)
        settle(tills)
        answers[order] = None
        return id

    return make


def audit(rows: Callable[..., list[Any]]) -> list[tuple[str, str, str, str]]:
    return [tuple(row) for row in rows("SELECT operator, action, target, reason FROM {akter}.actor_operator_audit ORDER BY at_ms, target")]


@pytest.mark.conformance("OPS-04")
def test_a_letter_is_tried_again_as_a_new_job_in_one_transaction(
    tills: Akter, dead: Callable[..., str], operator: Operator, rows: Callable[..., list[Any]]
) -> None:
    id = dead("kettle", NotApplied("declined"))
    ((old, new),) = operator.letters.retry([id], why="the card works again")
    assert old == id != new
    assert operator.letters.list() == []
    (row,) = inspect(tills, tills.actor(Till, "kettle")).outbox
    assert (row["kind"], row["intent_id"], row["payload"], row["attempts"]) == ("job", new, '{"order":"kettle"}', 0)
    assert row["caller"] == '{"source":"actor","ref":["default","Till","kettle"]}'
    assert audit(rows) == [("ada", "letter.retry", id, "the card works again")]
    settle(tills)
    assert calls == [("kettle", id), ("kettle", new)]
    assert inspect(tills, tills.actor(Till, "kettle")).state == {"log": ["failed", "paid"]}


@pytest.mark.conformance("OPS-05")
@pytest.mark.parametrize("action", ["retry", "discard"])
def test_an_ambiguous_letter_needs_the_word_that_the_provider_was_checked(
    tills: Akter, dead: Callable[..., str], operator: Operator, rows: Callable[..., list[Any]], action: str
) -> None:
    id = dead("kettle", ConnectionError("lost"))
    act = getattr(operator.letters, action)
    with pytest.raises(
        AkterError, match="1 of these letters are ambiguous, the outside world may have acted: ask the provider about"
    ) as refused:
        act([id])
    assert str(refused.value).endswith("and then say provider_checked=True, or --provider-checked")
    assert ([letter.job_id for letter in operator.letters.list()], audit(rows)) == ([id], [])
    act([id], provider_checked=True)
    assert operator.letters.list() == []
    assert [row[1] for row in audit(rows)] == [f"letter.{action}"]


@pytest.mark.conformance("OPS-06")
def test_a_discarded_letter_is_kept_by_its_audit_row(dead: Callable[..., str], operator: Operator, rows: Callable[..., list[Any]]) -> None:
    id = dead("kettle", NotApplied("declined"))
    operator.letters.discard([id], why="paid in cash")
    assert operator.letters.list() == []
    ((kept,),) = rows("SELECT outcome::text FROM {akter}.actor_operator_audit")
    found = json.loads(kept)
    assert found.pop("dead_at_ms") > 0
    assert found == {
        "job": "pay",
        "payload": '{"order":"kettle"}',
        "payload_version": 0,
        "cause": "declined",
        "attempts": 1,
        "ambiguous": False,
        "new_job_id": None,
    }


@pytest.mark.conformance("OPS-07")
@pytest.mark.parametrize("action", ["retry", "discard"])
def test_without_its_audit_row_nothing_is_done(
    tills: Akter, dead: Callable[..., str], operator: Operator, rows: Callable[..., list[Any]], action: str
) -> None:
    id = dead("kettle", NotApplied("declined"))
    rows("ALTER TABLE {akter}.actor_operator_audit ADD CONSTRAINT nobody CHECK (operator <> 'ada')")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        getattr(operator.letters, action)([id])
    assert [letter.job_id for letter in operator.letters.list()] == [id]
    assert inspect(tills, tills.actor(Till, "kettle")).outbox == ()


@pytest.mark.conformance("OPS-11")
def test_of_two_operators_that_act_at_once_one_finds_it_gone(
    tills: Akter, dead: Callable[..., str], operator: Operator, rows: Callable[..., list[Any]], akter_schema: str
) -> None:
    id = dead("kettle", NotApplied("declined"))
    ended: list[BaseException | None] = []

    def act() -> None:
        try:
            operator.letters.retry([id])
        except AkterError as problem:
            ended.append(problem)
        else:
            ended.append(None)

    with tills.engine.begin() as holding:
        # Both stand before the letter.
        holding.exec_driver_sql(f'SELECT 1 FROM "{akter_schema}".actor_dead_letters FOR UPDATE')
        threads = [threading.Thread(target=act) for _ in range(2)]
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while rows(waiting) != [(2,)]:
            threading.Event().wait(0.01)
    for thread in threads:
        thread.join(20)
    assert sorted(problem is None for problem in ended) == [False, True]
    (problem,) = [problem for problem in ended if problem is not None]
    assert f"there is no such dead letter: {id}" in str(problem)
    assert len(inspect(tills, tills.actor(Till, "kettle")).outbox) == 1


def test_letters_are_chosen_by_what_they_have_in_common(dead: Callable[..., str], operator: Operator) -> None:
    known = [dead(order, NotApplied("declined")) for order in ("a", "b")]
    unknown = dead("c", ConnectionError("lost"))
    assert [letter.job_id for letter in operator.letters.list(ambiguous=False)] == known
    assert [letter.job_id for letter in operator.letters.list(ambiguous=True)] == [unknown]
    assert [letter.job_id for letter in operator.letters.list(limit=1, after=operator.letters.list(limit=1)[0])] == [known[1]]
    assert operator.letters.list(actor_type="Other") == operator.letters.list(job="other") == []
    with pytest.raises(AkterError, match="say which letters to retry: by their ids, or by actor_type, job or ambiguous"):
        operator.letters.retry()
    assert sorted(done.job_id for done in operator.letters.retry(job="pay", ambiguous=False)) == sorted(known)
    assert [letter.job_id for letter in operator.letters.list()] == [unknown]
    with pytest.raises(AkterError, match="there is no such dead letter: nobody"):
        operator.letters.discard(["nobody"])


def test_the_command_lists_shows_tries_again_and_discards(
    tills: Akter, dead: Callable[..., str], akter: Callable[..., Done], rows: Callable[..., list[Any]]
) -> None:
    declined, unknown = dead("a", NotApplied("declined")), dead("b", ConnectionError("lost"))
    listed = akter("letters", "list")
    assert listed.code == 0
    assert [line.split()[:4] for line in listed.out.splitlines()[1:]] == [[declined, "Till", "a", "pay"], [unknown, "Till", "b", "pay"]]
    (one,) = [json.loads(line) for line in akter("letters", "list", "--ambiguous", "--json").out.splitlines()]
    assert (one["job_id"], one["cause"], one["payload"]) == (unknown, "ConnectionError: lost", '{"order":"b"}')
    shown = akter("letters", "show", unknown)
    assert "the outside world may have acted: ask the provider about this job id" in shown.out
    assert f"akter letters retry --provider-checked {unknown}" in shown.out
    refused = akter("letters", "retry", unknown)
    assert refused.code == 1
    assert "and then say provider_checked=True, or --provider-checked" in refused.err
    assert akter("letters", "retry").code == 2
    assert akter("letters", "retry", declined, "--why", "again").code == 0
    assert akter("letters", "discard", "--ambiguous", "--provider-checked").code == 1
    assert akter("letters", "discard", "--ambiguous", "--provider-checked", "--yes").out == "akter: discarded 1\n"
    assert akter("letters", "show", unknown).code == 1
    assert akter("letters", "list").out == "no dead letters\n"
    assert [row[1:3] for row in audit(rows)] == [("letter.retry", declined), ("letter.discard", unknown)]


def test_the_command_lists_letters_of_one_kind_and_refuses_to_list_those_of_both(
    dead: Callable[..., str], akter: Callable[..., Done]
) -> None:
    declined, _ = dead("a", NotApplied("declined")), dead("b", ConnectionError("lost"))
    assert [line.split()[0] for line in akter("letters", "list", "--not-ambiguous").out.splitlines()[1:]] == [declined]
    both = akter("letters", "list", "--ambiguous", "--not-ambiguous")
    assert (both.code, both.out) == (2, "")
    assert "no letter is --ambiguous and --not-ambiguous at once" in both.err
