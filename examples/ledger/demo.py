"""`python -m akter.examples.ledger`: a file of transfers, a worker process that is killed in the middle, and an audit of what is left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from akter import Akter, embedded

from ..stage import directory, many, prepare
from .accounts import Ledger, OtherFile, ledger
from .audit import audit, receipts
from .transfers import BadFile, Book, read
from .work import Desk, Worker, halves, in_threads

if TYPE_CHECKING:
    from .show import Show

FILE = Path(__file__).with_name("transfers.csv")


@click.command()
@click.option(
    "--transfers",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=FILE,
    metavar="FILE",
    help="Accounts and transfers of your own: CSV with the columns kind,id,debit,credit,amount,reference.",
)
@click.option("--data", metavar="DIR", help="Keep the database there; run it again, and every answer is known. Else it is thrown away.")
@click.option("--threads", type=click.IntRange(1, 16), default=4, show_default=True, metavar="N", help="Of each of the two processes.")
@click.pass_context
def demo(ctx: click.Context, file: Path, data: str | None, threads: int) -> None:
    """Do 2 400 transfers between 240 accounts on a PostgreSQL of its own, kill a worker in the middle, and audit what is left.

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
    show.say(f"[bold]{many(len(book.transfers), 'transfer')} between {many(len(book.openings), 'account')}[/], as {file.name} has them")
    with directory(data) as place, ledger(place) as app:
        try:
            prepare(app, show.say)
            app.actor(Ledger).use(book.digest)
            _open(app, show, book, threads)
            _transfer(app, show, book, place, file, threads)
            lines = audit(app.engine, book)
        except OtherFile:
            raise click.ClickException(f"{place} holds the accounts and transfers of another file: name a new directory") from None
        finally:
            embedded.stop(app.engine)
    show.audit(lines, file.name)
    ctx.exit(1 if any(line.wrong for line in lines) else 0)


def _open(app: Akter, show: Show, book: Book, threads: int) -> None:
    desk = Desk(app)
    in_threads(threads, desk.open, book.openings)
    show.say(f"{many(desk.ran, 'account')} opened" + (f", {many(desk.replayed, 'account')} open since before" if desk.replayed else ""))


def _transfer(app: Akter, show: Show, book: Book, place: str, file: Path, threads: int) -> None:
    mine, theirs = halves(book.transfers)
    desk = Desk(app)
    began, before = time.monotonic(), receipts(app.engine)
    with show.bars(len(mine), len(theirs)) as bars, ThreadPoolExecutor(1) as pool:
        ours = pool.submit(in_threads, threads, desk.transfer, mine)
        with Worker(place, file, threads) as first:
            first.wait(len(theirs) // 2, lambda: bars.update(desk.done, first))
            how = "was killed with SIGKILL" if first.kill() else "was done before it could be killed,"
        killed = time.monotonic()
        bars.say(f"[red]the worker process {first.pid} {how}[/] after {first.done:,} of its {many(len(theirs), 'transfer')}")
        with Worker(place, file, threads) as second:
            second.wait(len(theirs), lambda: bars.update(desk.done, second))
            second.end()
        took = (second.first_turn or time.monotonic()) - killed
        bars.say(
            f"[green]the worker process {second.pid} did them all again:[/] {many(second.replayed, 'answer')} replayed, "
            f"{many(second.ran, 'turn')} new, {'the first of them' if second.ran else 'in all'} {took:.1f} s after the kill"
        )
        while not wait([ours], timeout=0.1).done:
            bars.update(desk.done, second)
        ours.result()
        bars.update(desk.done, second)
    seconds, turns = time.monotonic() - began, receipts(app.engine) - before
    show.say(
        f"[bold]{many(turns, 'turn')} in {seconds:.1f} s: {turns / seconds:,.0f} a second[/], by {threads} threads in each of two processes"
    )
