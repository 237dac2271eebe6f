"""What operators see of those that are behind, and how one gets past an event that it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from shops import Books, Customer, Node, Shop, Watcher, items, state, told

from akter import AkterError
from akter.cli import main
from akter.operating import Operator
from akter.testing import advance


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def fail_at(which: str) -> None:
    def fail(who: str, source: str, item: str) -> None:
        if item == which and who.startswith(("watcher", "customer")):
            raise ValueError(f"{item} is torn")

    told.on_event = fail


@pytest.fixture
def operator(shop: Node, akter_schema: str) -> Operator:
    return Operator(shop.app.engine, schema=akter_schema, by="ada")


@pytest.fixture
def run(akter_database: str, akter_schema: str) -> Callable[..., Any]:
    """Run the command `akter subscriptions ...`."""

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["--url", akter_database, "--schema", akter_schema, "subscriptions", *arguments])

    return run


@pytest.fixture
def stuck(shop: Node, beside: Any) -> Node:
    """A watcher and a customer that cannot be told of the second of three events, and will not be tried again soon."""
    fail_at("torn")
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "one", "torn", "two")
    shop.runner.drain()
    beside("UPDATE {akter}.actor_subscriptions SET due_at_ms = due_at_ms + 200000, attempts = 1 WHERE due_at_ms IS NOT NULL")
    return shop


@pytest.mark.conformance("SUB-55")
def test_one_that_cannot_be_told_passes_over_it_and_is_told_of_the_gap(
    stuck: Node, operator: Operator, beside: Any, followers: Callable[..., Any]
) -> None:
    operator.skip_events("Shop/s", "Watcher.told", "w", through=2, why="torn")
    operator.skip_events("Shop/s", "Customer.ordered", through=2, why="torn")
    stuck.runner.drain()
    assert state(stuck.app, stuck.app.actor(Watcher, "w"))["gaps"] == ["s:1-2"]
    assert items(stuck.app, Watcher, "w") == ["s:one", "s:two"]
    assert items(stuck.app, Customer, "ada") == ["s:1:one", "s:3:two"]
    assert followers("delivered", "due_at_ms", "last_error", "gap_through") == [(3, None, None, None)]
    assert followers("delivered", "gaps", type="Customer") == [(3, 1)]
    audited = beside(
        """SELECT operator, action, actor_type, actor_id, target, reason, outcome->>'through'
           FROM {akter}.actor_operator_audit ORDER BY at_ms"""
    )
    assert audited == [
        ("ada", "subscriptions.skip", "Shop", "s", "Watcher.told w", "torn", "2"),
        ("ada", "subscriptions.skip", "Shop", "s", "Customer.ordered", "torn", "2"),
    ]


@pytest.mark.conformance("SUB-55")
@pytest.mark.parametrize(
    ("source", "subscription", "through", "said"),
    [
        ("Shop/s", "Watcher.told", 1, r"Watcher\.told w is past the cursor 1 of Shop/s already"),
        ("Shop/s", "Watcher.told", 4, r"Shop/s has no event 4 yet"),
        ("Shop/other", "Watcher.told", 2, r"Watcher\.told w does not follow Shop/other"),
        ("Ship/s", "Watcher.told", 2, r"Watcher\.told w does not follow Ship/s"),
    ],
)
def test_what_cannot_be_passed_over_is_refused_and_changes_nothing(
    stuck: Node, operator: Operator, beside: Any, source: str, subscription: str, through: int, said: str
) -> None:
    before = beside("SELECT * FROM {akter}.actor_subscriptions ORDER BY subscriber_type, subscriber_id")
    with pytest.raises(AkterError, match=said):
        operator.skip_events(source, subscription, "w", through=through)
    assert beside("SELECT * FROM {akter}.actor_subscriptions ORDER BY subscriber_type, subscriber_id") == before
    assert beside.count("actor_operator_audit") == 0


@pytest.mark.conformance("SUB-56")
def test_those_that_are_behind_are_listed_with_how_far_and_why(stuck: Node, operator: Operator, run: Callable[..., Any]) -> None:
    found = {row.subscription: row for row in operator.lagging()}
    assert sorted(found) == ["Customer.ordered", "Watcher.told"]
    row = found["Watcher.told"]
    assert (row.tenant, row.source, row.subscriber_id, row.reason) == ("default", "Shop/s", "w", "backoff")
    assert (row.delivered, row.behind, row.attempts, row.gaps) == (1, 2, 1, 0)
    assert row.last_error is not None
    assert "torn is torn" in row.last_error
    assert operator.lagging(attempts=2) == []
    listed = run("list", "--type", "Watcher")
    assert listed.exit_code == 0, listed.output
    assert listed.output.splitlines()[1].split()[:5] == ["default", "Shop/s", "Watcher.told", "w", "backoff"]
    assert {(count.kind, count.target_type, count.reason, count.rows) for count in operator.overview().waiting} == {
        ("subscription", "Customer", "backoff", 1),
        ("subscription", "Watcher", "backoff", 1),
    }


@pytest.mark.conformance("SUB-56")
def test_the_sources_story_says_whom_an_operator_let_pass(stuck: Node, operator: Operator, akter_database: str, akter_schema: str) -> None:
    operator.skip_events("Shop/s", "Watcher.told", "w", through=2, why="torn")
    shown = CliRunner().invoke(main, ["--url", akter_database, "--schema", akter_schema, "inspect", "Shop", "s"])
    (line,) = [line for line in shown.output.splitlines() if "subscriptions.skip" in line]
    assert line.split(maxsplit=2)[2] == "subscriptions.skip Watcher.told w by ada: torn"


@pytest.mark.conformance("SUB-56")
def test_one_that_is_due_is_listed_with_why_nobody_tells_it(stuck: Node, operator: Operator, run: Callable[..., Any], beside: Any) -> None:
    operator.pause("subscription")
    beside("UPDATE {akter}.actor_subscriptions SET due_at_ms = 0 WHERE due_at_ms IS NOT NULL")
    with stuck.runner:
        assert {row.subscription: row.reason for row in operator.lagging()} == {"Customer.ordered": "paused", "Watcher.told": "paused"}
    operator.resume("subscription")
    operator.pause("subscription", "Watcher")
    assert {row.subscription: row.reason for row in operator.lagging()} == {"Customer.ordered": "unknown type", "Watcher.told": "paused"}
    assert "unknown type" in run("list", "--type", "Customer").output


@pytest.mark.conformance("SUB-56", "OBS-07")
def test_the_doctor_names_one_that_is_stuck_and_what_to_do(stuck: Node, operator: Operator, run: Callable[..., Any]) -> None:
    for _ in range(7):
        advance(stuck.app, timedelta(seconds=257), stuck.runner)
    assert {row.attempts >= 8 for row in operator.lagging()} == {True}
    found = [finding for finding in operator.findings() if finding.name == "stuck subscription"]
    said = sorted(finding.finding.partition(", tried")[0] for finding in found)
    assert said == ["Customer.ordered cannot be told of Shop/s after 1", "Watcher.told w cannot be told of Shop/s after 1"]
    remedy = next(finding.remedy for finding in found if finding.finding.startswith("Watcher"))
    assert remedy == "mend the handler, or: akter subscriptions skip Shop/s Watcher.told w --through 2 --yes"
    refused = run("skip", "Shop/s", "Watcher.told", "w", "--through", "2")
    assert (refused.exit_code, "say --yes" in refused.output) == (1, True)
    done = run(*remedy.partition("akter subscriptions ")[2].split())
    assert (done.exit_code, done.output) == (0, "akter: Watcher.told w passes over the events of Shop/s up to 2\n")
    stuck.runner.drain()
    assert items(stuck.app, Watcher, "w") == ["s:one", "s:two"]


def test_the_doctor_names_the_command_that_shows_followers_which_nobody_serves(
    stuck: Node, operator: Operator, run: Callable[..., Any]
) -> None:
    stuck.runner.stop()
    advance(stuck.app, timedelta(seconds=600))
    found = {finding.finding: finding.remedy for finding in operator.findings() if finding.name == "unknown type"}
    remedy = "run a process that registers Watcher, or: akter subscriptions list --type Watcher"
    assert found["1 subscription row for Watcher due and no live runner serves that type"] == remedy
    shown = run(*remedy.partition("akter subscriptions ")[2].split())
    assert (shown.exit_code, shown.output.splitlines()[1].split()[:4]) == (0, ["default", "Shop/s", "Watcher.told", "w"])


def test_a_subscription_whose_type_left_the_code_is_forgotten(
    shop: Node, node: Callable[..., Node], beside: Any, run: Callable[..., Any], summary: Callable[[], Any]
) -> None:
    place(shop, "one")
    shop.runner.drain()
    told_by = summary()
    done = run("forget", "Branch.happened", "--yes", "--by", "ada")
    assert (done.exit_code, done.output) == (0, "akter: forgot Branch.happened, by which 1 followed\n")
    assert summary() == {("s", "Placed"): told_by["s", "Placed"] - 1}
    without = node(Shop, Customer, Books, Watcher)
    without.app.actor(Shop, "s").place(items=["two"])
    without.runner.drain()
    assert items(without.app, Books) == ["one", "two"]
    assert beside("SELECT action, target FROM {akter}.actor_operator_audit") == [("subscriptions.forget", "Branch.happened")]
