"""A handle is an address with commands on it: what else somebody may try on it is refused, and the message says what to do instead."""

from __future__ import annotations

import copy
import pickle
from typing import Any, cast

import pytest

from akter.actor import Actor, locate
from akter.command import command, query
from akter.errors import InsideTurn, PayloadInvalid
from akter.handle import Handle, Member, target_of
from akter.job import Attempt, DeadLetter, Job


def fetch(attempt: Attempt, url: str) -> str:
    return url


class Page(Actor):
    url: str = ""
    hits: int = 0
    fetch = Job(fetch)

    @command
    def load(self, url: str) -> None:
        self.enqueue(self.fetch, url=url)

    @command(internal=True)
    def forget(self) -> None: ...

    @query
    def size(self, at_least: int = 0) -> int:
        return max(self.hits, at_least)

    @fetch.on_success
    def fetched(self, text: str) -> None: ...

    @fetch.on_dead_letter
    def lost(self, letter: DeadLetter) -> None: ...

    def helper(self) -> int:
        return 1


class Front(Actor, singleton=True):
    @command
    def turn(self) -> None: ...


class Bare(Actor): ...


class Notes:
    """A door that writes down who knocks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def call(self, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((repr(member), args, kwargs))
        return "answer"


def handle(kind: type[Actor] = Page, id: str | None = "p-1", door: Notes | None = None) -> Any:
    return Handle(cast(Any, kind).__akter__, locate(kind, "default", id), door)


def test_a_handle_knows_its_id_and_says_its_address() -> None:
    assert handle().id == "p-1"
    assert repr(handle()) == "<Page/p-1>"
    assert handle(Front, None).id == "singleton"


def test_commands_and_queries_go_through_the_door() -> None:
    door = Notes()
    page = handle(door=door)
    assert page.load("u") == "answer"
    assert page.size(at_least=3) == "answer"
    assert page.forget() == "answer"
    assert door.calls == [("<Page/p-1.load>", ("u",), {}), ("<Page/p-1.size>", (), {"at_least": 3}), ("<Page/p-1.forget>", (), {})]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("url", "Page.url is state, which only the actor itself can see: declare a @query that returns it"),
        ("fetch", r"Page.fetch is a job: it is started inside a turn with self.enqueue\(...\)"),
        ("fetched", "Page.fetched is called by akter when its job ends, not on a handle"),
        ("lost", "Page.lost is called by akter when its job ends, not on a handle"),
        ("send", r"Page.send belongs to a turn: .* To send from outside use app.send\(...\)"),
        ("connection", "Page.connection belongs to a turn: use it as self.connection inside a @command or @query"),
        ("emit", "Page.emit belongs to a turn"),
        ("helper", "Page.helper is not a command: mark it @command or @query to call it on a handle"),
        ("laod", "Page has no command 'laod'; it has forget, load, size"),
        ("_private", "Page has no command '_private'"),
    ],
)
def test_everything_else_is_refused_with_the_remedy(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=f"^{said}"):
        getattr(handle(), name)
    assert not hasattr(handle(), name)


def test_an_actor_without_commands_says_so() -> None:
    with pytest.raises(AttributeError, match="Bare has no command 'go'; it has none"):
        handle(Bare).go  # noqa: B018


@pytest.mark.parametrize("name", ["url", "id", "load", "anything", "_address"])
def test_nothing_can_be_set_on_a_handle(name: str) -> None:
    page = handle()
    with pytest.raises(AttributeError, match="<Page/p-1> is a handle: state is changed inside a turn, by a @command of Page"):
        setattr(page, name, "x")
    assert page.id == "p-1"


def test_nothing_can_be_deleted_from_a_handle() -> None:
    with pytest.raises(AttributeError, match="<Page/p-1> is a handle"):
        del handle().url


def test_handles_of_one_actor_are_equal() -> None:
    assert handle() == handle(door=Notes())
    assert handle() != handle(id="p-2")
    assert handle() != "p-1"
    assert {handle(), handle(), handle(id="p-2")} == {handle(), handle(id="p-2")}
    assert handle(Page, "1") != handle(Bare, "1")
    assert Handle(cast(Any, Page).__akter__, locate(Page, "acme", "p-1"), None) != handle()
    assert bool(handle())


def test_a_handle_can_be_copied_and_does_not_pretend_to_be_anything() -> None:
    page = handle()
    assert copy.copy(page) == page
    assert copy.deepcopy([page]) == [page]
    with pytest.raises(AttributeError):
        page.__iter__()
    with pytest.raises(TypeError):
        len(page)


def test_a_handle_does_not_leave_its_process() -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(handle(door=Notes()))


def test_a_command_of_a_handle_made_in_a_turn_is_sent_not_called() -> None:
    other = Bare().actor(Page, "p-2")
    with pytest.raises(InsideTurn, match=r"Page.load was called on a handle made inside a turn: use self.send\(...\)"):
        other.load("u")


# -- finding an actor


def test_an_actor_needs_an_id_and_a_singleton_has_none() -> None:
    assert locate(Front, "default", None).actor_id == "singleton"
    with pytest.raises(TypeError, match=r"Page needs an id: actor\(Page, id\)"):
        locate(Page, "default", None)
    with pytest.raises(TypeError, match="Front is a singleton: there is one, without an id"):
        locate(Front, "default", "f-1")


@pytest.mark.parametrize("id", ["", "a\0", "\ud800", "x" * 513, 5, b"x"], ids=range(6))
def test_an_id_that_cannot_be_stored_is_refused(id: Any) -> None:
    with pytest.raises(PayloadInvalid, match="the id of Page"):
        locate(Page, "default", id)


@pytest.mark.parametrize("kind", [Actor, object, Page.load, "Page", Page], ids=["Actor", "object", "method", "text", "instance"])
def test_only_an_actor_class_has_actors(kind: Any) -> None:
    wrong = kind() if kind is Page else kind
    with pytest.raises(TypeError, match=r"actor\(...\) takes an Actor subclass and an id"):
        locate(wrong, "default", "x")


# -- what send takes


def test_send_takes_a_command_of_a_handle_or_of_the_actor_itself() -> None:
    page = Page()
    assert target_of(handle().load) == (handle()._address, cast(Any, Page).__akter__.members["load"])
    assert target_of(page.forget, page) == (page._address, cast(Any, Page).__akter__.members["forget"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: handle().size, "Page.size is a query: only commands can be sent, because nobody waits for an answer"),
        (lambda: Page.load, "takes a command"),
        (lambda: Page().helper, "takes a command"),
        (lambda: fetch, "takes a command"),
        (lambda: print, "takes a command"),
        (lambda: "load", "takes a command"),
        (lambda: Page.fetch, "takes a command"),
        (lambda: Page().load, r"Page.load belongs to an actor that was constructed by hand and lives nowhere: use actor\(Kind, id\).load"),
        (
            lambda: Member(handle(), cast(Any, Page).__akter__.members["lost"]),
            "Page.lost is a route of a job: akter calls it when the job ends",
        ),
    ],
    ids=["query", "unbound", "helper", "function", "builtin", "text", "job", "constructed", "route"],
)
def test_send_refuses_anything_else(wrong: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        target_of(wrong())


def test_an_overridden_command_is_not_sent_in_place_of_the_one_that_was_given() -> None:
    class Faster(Page):
        @command
        def load(self, url: str) -> None:
            self.send(super().load, url)

    with pytest.raises(TypeError, match="takes a command"):
        Faster().load("u")
