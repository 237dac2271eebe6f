"""`akter demo`: a file of orders, a provider that does not always answer, a worker that is killed while it charges, and an audit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from sqlalchemy import text

from akter import Akter, embedded
from akter.errors import AkterError

from ..stage import directory, many, prepare
from .audit import audit, look, unknowns
from .book import BadFile, Placed, read
from .processes import Child, Ledger
from .shop import ENDED, LEASE, Order, shop

if TYPE_CHECKING:
    from .show import Bars, Show

FILE = Path(__file__).with_name("orders.csv")

SEATS = 8
"""Charges of one worker at once."""
OPEN = 100
"""Orders that are open at a time: the next ones come when others have ended."""
STANDSTILL = 60.0
"""Seconds without any change after which the demo gives up."""

STATES = text("SELECT value->>'status', count(*) FROM akter.actor_state WHERE actor_type = 'Order' GROUP BY 1")
LEFT = text("SELECT count(*) FROM akter.actor_outbox")
COUNT = text("SELECT count(*) FROM akter.actor_receipts")


@click.command()
@click.option(
    "--orders",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=FILE,
    metavar="FILE",
    help="Orders of your own: CSV with the columns order,customer,item,quantity,price (cents), a row for each line of an order.",
)
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Which orders the provider treats badly.")
@click.pass_context
def demo(ctx: click.Context, file: Path, seed: int) -> None:
    """Take orders, charge them, kill a worker, and audit.

    On a PostgreSQL of its own: 1 200 orders, and a provider that does not always answer.

    Exits with 0 only if the audit finds nothing wrong.
    """
    if find_spec("rich") is None:
        raise click.ClickException("the demo prints with rich, which is not installed: pip install 'akter[embedded]'")
    from .show import Show

    try:
        book = read(file)
    except BadFile as problem:
        raise click.ClickException(str(problem)) from None
    show = Show()
    show.say(f"[bold]{many(len(book), 'order')} of {many(len({order.customer for order in book}), 'customer')}[/], as {file.name} has them")
    with ExitStack() as stack:
        data, beside = stack.enter_context(directory()), Path(stack.enter_context(directory()))
        app = stack.enter_context(shop(f"embedded:{data}"))
        stack.callback(embedded.stop, app.engine)
        prepare(app, show.say)
        ledger = Ledger(beside / "provider.sqlite3")
        with Child("provider", str(beside / "provider.sqlite3"), str(seed), log=beside / "provider.log") as provider:
            run = Run(
                app, book, ledger, show, {"SHOP_DATABASE": f"embedded:{data}", "SHOP_PROVIDER": provider.ready()}, beside / "workers.log"
            )
            run.all()
        found = look(app.engine, ledger)
        lines = audit(book, found)
        show.audit(lines, unknowns(found))
    ctx.exit(1 if any(line.wrong for line in lines) else 0)


@dataclass
class Run:
    """From the first order to the last: places them, watches them, and kills a worker on the way. `placed`: so many are."""

    app: Akter
    book: list[Placed]
    ledger: Ledger
    show: Show
    env: dict[str, str]
    log: Path
    placed: int = 0

    def all(self) -> None:
        """Do it; raises `AkterError` if nothing moves any more."""
        began = time.monotonic()
        with self.show.bars(len(self.book)) as bars, self._worker() as first, self._worker() as second:
            first.ready()
            second.ready()
            self._watch(
                bars, [first, second], lambda ended: ended * 3 >= len(self.book) and len(self.ledger.open_requests(second.pid)) >= 2
            )
            second.kill()
            killed, cut = time.time(), self.ledger.open_requests(second.pid)
            bars.say(f"[red]the worker process {second.pid} was killed with SIGKILL[/] while it waited for {many(len(cut), 'charge')}")
            with self._worker() as third:
                bars.say(f"[green]the worker process {third.pid} takes its place[/]")
                self._watch(bars, [first, third], lambda ended: ended == len(self.book) and not self._left())
        self._tell(cut, second.pid, killed, time.monotonic() - began)

    def _worker(self) -> Child:
        return Child("worker", str(SEATS), log=self.log, env=self.env)

    def _place(self, ended: int) -> None:
        chosen = self.book[self.placed : ended + OPEN]
        if chosen:
            messages = [(self.app.actor(Order, order.id).place, {"customer": order.customer, "lines": order.lines}) for order in chosen]
            with self.app.engine.begin() as connection:
                self.app.within(connection).send_many(messages)
            self.placed += len(chosen)

    def _watch(self, bars: Bars, workers: list[Child], until: Callable[[int], bool]) -> None:
        """Place orders and show the progress until it is far enough, or all have ended."""
        before, since = (0, 0), time.monotonic()
        while True:
            states, asked = self._states(), self.ledger.asked()
            ended = sum(states[state] for state in ENDED)
            bars.update(_reached(states), ended, asked)
            self._place(ended)
            if until(ended) or (ended == len(self.book) and not self._left()):
                return
            for worker in workers:
                worker.check()
            if before != (ended, asked.requests):
                before, since = (ended, asked.requests), time.monotonic()
            elif time.monotonic() - since > STANDSTILL:
                raise AkterError(f"nothing has moved for {STANDSTILL:.0f} seconds; {ended:,} of {len(self.book):,} orders have ended")
            time.sleep(0.1)

    def _states(self) -> Counter[str]:
        with self.app.engine.connect() as connection:
            return Counter({row[0]: row[1] for row in connection.execute(STATES)})

    def _left(self) -> int:
        with self.app.engine.connect() as connection:
            return int(connection.execute(LEFT).scalar_one())

    def _tell(self, cut: set[str], worker: int, killed: float, seconds: float) -> None:
        again = self.ledger.asked_again(cut, killed, worker)
        if again:
            self.show.say(
                f"the killed worker's {many(len(again), 'charge')} were asked for again, the last one [bold]{max(again.values()):.1f} s[/] "
                f"after the kill: its leases are {LEASE:.0f} s long"
            )
        with self.app.engine.connect() as connection:
            turns = int(connection.execute(COUNT).scalar_one())
        asked = self.ledger.asked()
        self.show.say(
            f"[bold]{many(len(self.book), 'order')} in {seconds:.1f} s[/]: {many(turns, 'turn')}, {many(asked.requests, 'request')} to the "
            f"provider, {asked.unanswered:,} of them never answered, {many(asked.charges, 'charge')} in its ledger"
        )


def _reached(states: Counter[str]) -> dict[str, int]:
    """How many orders have come as far as each step."""
    paid = states["paid"] + states["shipped"]
    return {**states, "placed": states.total(), "paid": paid}
