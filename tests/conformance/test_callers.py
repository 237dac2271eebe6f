"""Who may call what, and what they are told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from akter import Access, Actor, Anonymous, Defect, PayloadInvalid, Rejection, System, Unauthorized, User, command, query
from akter.testing import crash_next, inspect, pause_next, receipts

revoked: set[str] = set()
asked: list[Access] = []
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    revoked.clear()
    asked.clear()
    ran.clear()


def unless_revoked(access: Access) -> bool:
    asked.append(access)
    return not (isinstance(access.caller, User) and access.caller.subject in revoked)


class Refused(Rejection):
    """No."""


class Closed(Actor):
    """Has no policy."""

    count: int = 0

    @command
    def increment(self) -> int:
        ran.append("increment")
        self.count += 1
        return self.count

    @query
    def value(self) -> int:
        ran.append("value")
        return self.count


class Opened(Closed, access=unless_revoked):
    """Is open to whoever was not revoked."""

    @command
    def refuse(self) -> None:
        ran.append("refuse")
        raise Refused

    @command(internal=True)
    def reset(self) -> None:
        ran.append("reset")
        self.count = 0

    @query
    def refused(self) -> None:
        raise Refused

    @query
    def revoke(self, subject: str) -> int:
        revoked.add(subject)
        return self.count


ADA, EVE = User("ada"), User("eve")


@pytest.mark.conformance("ACC-01")
def test_code_in_the_process_is_the_system_in_the_default_tenant(akter_app) -> None:
    app = akter_app(Opened)
    counter = app.actor(Opened, "c-1")
    counter.increment()
    assert receipts(app, counter)[0].caller_key == '["System","process",null,null]'
    assert {(access.caller, access.tenant) for access in asked} == {(System(), "default")}


@pytest.mark.conformance("ACC-01")
def test_a_handle_keeps_the_caller_and_the_tenant_it_was_made_under(akter_app) -> None:
    app = akter_app(Opened)
    with app.acting_as(ADA), app.tenant("acme"):
        counter = app.actor(Opened, "c-1")
    with app.acting_as(EVE), app.tenant("other"):
        counter.increment()
    assert [(access.caller, access.tenant) for access in asked] == [(ADA, "acme")] * 2
    assert receipts(app, counter)[0].caller_key == '["User","ada"]'


@pytest.mark.conformance("ACC-02", "TURN-10")
@pytest.mark.parametrize("caller", [ADA, Anonymous()])
def test_without_a_policy_only_the_system_may_call(akter_app, caller) -> None:
    app = akter_app(Closed)
    with app.acting_as(caller):
        counter = app.actor(Closed, "c-1")
        for call in (counter.increment, counter.value):
            with pytest.raises(Unauthorized) as caught:
                call()
            assert caught.value.code == "access_denied"
            assert "declare access= on the class, or authorize= on the Akter" in str(caught.value)
    assert ran == []
    assert inspect(app, counter).generation is None
    assert app.actor(Closed, "c-1").increment() == 1
    assert app.actor(Closed, "c-1").value() == 1


@pytest.mark.conformance("ACC-03")
def test_the_policy_is_asked_about_commands_and_queries_with_all_there_is_to_know(akter_app) -> None:
    app = akter_app(Opened)
    with app.acting_as(ADA), app.tenant("acme"):
        counter = app.actor(Opened, "c-1")
        counter.increment()
        counter.value()
    assert list(dict.fromkeys(asked)) == [
        Access(caller=ADA, tenant="acme", actor="Opened", id="c-1", member="increment", kind="command"),
        Access(caller=ADA, tenant="acme", actor="Opened", id="c-1", member="value", kind="query"),
    ]


@pytest.mark.conformance("ACC-03")
def test_a_policy_may_allow_queries_and_deny_commands(akter_app) -> None:
    class Readable(Closed, access=lambda access: access.kind == "query"):
        """For readers."""

    app = akter_app(Readable)
    with app.acting_as(ADA):
        counter = app.actor(Readable, "c-1")
        assert counter.value() == 0
        with pytest.raises(Unauthorized):
            counter.increment()


@pytest.mark.conformance("ACC-04")
@pytest.mark.parametrize(
    ("everywhere", "here", "may"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False), (True, None, True), (None, True, True)],
)
def test_the_global_and_the_actors_policy_must_both_allow(akter_app, everywhere, here, may) -> None:
    class Guarded(Closed, access=None if here is None else lambda _: here):
        """Has two doors."""

    app = akter_app(Guarded, authorize=None if everywhere is None else lambda _: everywhere)
    with app.acting_as(ADA):
        counter = app.actor(Guarded, "c-1")
    if may:
        assert (counter.increment(), counter.value()) == (1, 1)
    else:
        for call in (counter.increment, counter.value):
            with pytest.raises(Unauthorized):
                call()
        assert ran == []


@pytest.mark.conformance("ACC-04")
@pytest.mark.parametrize("answer", [1, "yes", None, object()])
def test_a_policy_that_answers_anything_but_true_denies(akter_app, answer) -> None:
    class Odd(Closed, access=lambda _: answer):
        """Its policy forgot to return a bool."""

    app = akter_app(Odd)
    with pytest.raises(Unauthorized):
        app.actor(Odd, "c-1").increment()
    assert ran == []


@pytest.mark.parametrize("where", ["here", "everywhere"])
def test_a_policy_that_fails_refuses_the_call_and_its_words_stay_with_the_cause(akter_app, beside, where) -> None:
    def fails(access: Access) -> bool:
        raise LookupError("no user has the token s3cr3t")

    class Broken(Closed, access=fails if where == "here" else None):
        """Its policy cannot tell."""

    app = akter_app(Broken, authorize=None if where == "here" else fails)
    with app.acting_as(ADA):
        counter = app.actor(Broken, "c-1")
    for call, member in ((counter.increment, "increment"), (counter.value, "value")):
        with pytest.raises(Defect) as caught:
            call()
        said = f"the access policy for Broken.{member} raised LookupError: the call was refused, and nothing was written"
        assert str(caught.value) == said
        assert str(caught.value.__cause__) == "no user has the token s3cr3t"
    assert ran == []
    assert beside.count("actor_generations") == beside.count("actor_receipts") == 0


def test_a_policy_that_fails_after_the_command_withholds_its_answer_and_does_not_say_that_nothing_was_saved(akter_app) -> None:
    def fails(access: Access) -> bool:
        if ran:
            raise LookupError("no user has the token s3cr3t")
        return True

    class Broken(Closed, access=fails):
        """Its policy fails as soon as something ran."""

    app = akter_app(Broken)
    counter = app.actor(Broken, "c-1")
    with pytest.raises(Defect) as caught:
        counter.increment()
    said = "the access policy for Broken.increment raised LookupError: the answer is withheld, and what the command did stays"
    assert str(caught.value) == said
    assert inspect(app, counter).state == {"count": 1}


def test_what_a_policy_says_with_an_error_of_akter_is_left_as_it_is(akter_app) -> None:
    def refuses(access: Access) -> bool:
        raise Unauthorized("only on weekdays")

    class Picky(Closed, access=refuses):
        """Says why."""

    with pytest.raises(Unauthorized, match="^only on weekdays$"):
        akter_app(Picky).actor(Picky, "c-1").increment()


@pytest.mark.conformance("ACC-05", "TURN-10")
def test_revocation_takes_effect_at_the_next_call_of_a_handle_that_exists(akter_app) -> None:
    app = akter_app(Opened)
    with app.acting_as(ADA):
        counter = app.actor(Opened, "c-1")
    assert (counter.increment(), counter.value()) == (1, 1)
    revoked.add("ada")
    ran.clear()
    for call in (counter.increment, counter.value):
        with pytest.raises(Unauthorized):
            call()
    assert ran == []


@pytest.mark.conformance("ACC-07", "TURN-07")
@pytest.mark.parametrize("caller", [ADA, Anonymous()])
def test_an_internal_command_stays_the_systems_even_with_a_policy_that_allows_everybody(akter_app, caller) -> None:
    app = akter_app(Opened)
    with app.acting_as(caller), pytest.raises(Unauthorized, match="internal"):
        app.actor(Opened, "c-1").reset()
    assert ran == []
    app.actor(Opened, "c-1").reset()
    assert ran == ["reset"]


@pytest.mark.conformance("ACC-08", "TURN-07")
@pytest.mark.parametrize("caller", [Anonymous(), User("System"), User('["System","process",null,null]'), User("process")])
def test_no_anonymous_caller_and_no_subject_can_pass_for_the_system(akter_app, caller) -> None:
    app = akter_app(Opened, Closed)
    with app.acting_as(caller):
        with pytest.raises(Unauthorized):
            app.actor(Closed, "c-1").increment()
        with pytest.raises(Unauthorized):
            app.actor(Opened, "c-1").reset()
    with app.command_id("a", scope="shared"):
        app.actor(Opened, "c-2").increment()
    with app.acting_as(caller), app.command_id("a", scope="shared"), pytest.raises(Unauthorized) as caught:
        app.actor(Opened, "c-2").increment()
    assert caught.value.code == "receipt_access_denied"


@pytest.mark.conformance("TURN-07")
def test_a_receipt_is_bound_to_the_system_principal_that_made_it(akter_app) -> None:
    app = akter_app(Opened)
    on_behalf = System(on_behalf_of=ADA)
    with app.command_id("a", scope="shared"):
        app.actor(Opened, "c-1").increment()
    with app.acting_as(on_behalf), app.command_id("a", scope="shared"), pytest.raises(Unauthorized) as caught:
        app.actor(Opened, "c-1").increment()
    assert caught.value.code == "receipt_access_denied"
    with app.acting_as(on_behalf):
        app.actor(Opened, "c-1").increment()
    assert receipts(app, app.actor(Opened, "c-1"))[1].caller_key == '["System","process",null,["User","ada"]]'


@pytest.mark.conformance("TURN-21")
def test_a_subject_is_at_most_512_bytes() -> None:
    assert User("é" * 256).subject == "é" * 256
    for subject in ("é" * 256 + "a", "", "a\0", "\ud800"):
        with pytest.raises(PayloadInvalid):
            User(subject)


@pytest.mark.conformance("TURN-13")
@pytest.mark.parametrize("member", ["revoke", "refused"])
def test_a_querys_result_is_withheld_when_its_caller_was_revoked_while_it_ran(akter_app, member) -> None:
    app = akter_app(Opened)

    class Racing(Opened, name="Opened"):
        """Revokes while it runs."""

        @query
        def refused(self) -> None:
            revoked.add("ada")
            raise Refused

    app = akter_app(Racing)
    with app.acting_as(ADA):
        counter: Any = app.actor(Racing, "c-1")
        with pytest.raises(Unauthorized):
            counter.revoke("ada") if member == "revoke" else counter.refused()


@pytest.mark.conformance("TURN-29")
@pytest.mark.parametrize("point", [None, "before_commit", "after_commit"])
def test_revocation_does_not_cancel_a_command_in_flight_or_its_retry_and_withholds_the_answer(akter_app, start, point) -> None:
    app = akter_app(Opened)
    with app.acting_as(ADA):
        counter = app.actor(Opened, "c-1")
    if point is not None:
        crash_next(app, point)
    with pause_next(app, "before_handler") as pause:
        turn = start(counter.increment)
        pause.wait()
        revoked.add("ada")
        pause.release()
        with pytest.raises(Unauthorized):
            turn.result(20)
    found = inspect(app, counter)
    assert (found.state, len(found.receipts)) == ({"count": 1}, 1)
    with pytest.raises(Unauthorized):
        counter.increment()


@pytest.mark.conformance("TURN-29")
def test_a_rejection_is_withheld_from_a_caller_who_was_revoked_meanwhile(akter_app, start) -> None:
    app = akter_app(Opened)
    with app.acting_as(ADA):
        counter = app.actor(Opened, "c-1")
    with pause_next(app, "before_commit") as pause:
        turn = start(counter.refuse)
        pause.wait()
        revoked.add("ada")
        pause.release()
        with pytest.raises(Unauthorized):
            turn.result(20)
    assert len(receipts(app, counter)) == 1


@pytest.mark.conformance("TURN-40")
def test_a_competing_caller_of_the_same_id_is_denied_while_the_rejection_is_not_committed_yet(
    akter_app, other_engine, start, beside
) -> None:
    app, second = akter_app(Opened), akter_app(Opened, engine=other_engine)
    with app.acting_as(ADA):
        mine = app.actor(Opened, "c-1")
    with second.acting_as(EVE):
        theirs = second.actor(Opened, "c-1")

    def under(one: Any, call: Any) -> Any:
        with one.command_id("a", scope="shared"):
            return call()

    with pause_next(app, "before_commit") as pause:
        first = start(under, app, mine.refuse)
        pause.wait()
        rival = start(under, second, theirs.refuse)
        beside.until_waiting()
        pause.release()
        with pytest.raises(Refused):
            first.result(20)
        with pytest.raises(Unauthorized) as caught:
            rival.result(20)
    assert caught.value.code == "receipt_access_denied"
    assert ran == ["refuse"]
    assert len(receipts(app, mine)) == 1


@pytest.mark.conformance("ACC-01")
def test_what_surrounds_a_call_does_not_leak_into_other_threads_or_other_apps(akter_app, other_engine) -> None:
    app, second = akter_app(Opened), akter_app(Opened, engine=other_engine)
    with app.acting_as(ADA), app.tenant("acme"):
        second.actor(Opened, "c-1").increment()
        thread = threading.Thread(target=lambda: app.actor(Opened, "c-1").increment())
        thread.start()
        thread.join(20)
    assert {(access.caller, access.tenant) for access in asked} == {(System(), "default")}
    assert inspect(app, app.actor(Opened, "c-1")).state == {"count": 2}
