"""`akter letters`: jobs that gave up, looked at, tried again or discarded, with a record of who did what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from akter.cli import Target
from akter.commands import show
from akter.commands.outbox import BY, WHY, operator_of
from akter.letters import MOST, Letter


def which(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which letters are meant."""
    options = (
        click.argument("job_ids", nargs=-1),
        click.option("--type", "actor_type", metavar="NAME", help="Those of this actor type."),
        click.option("--job", metavar="NAME", help="Those of this job."),
        click.option("--ambiguous", is_flag=True, help="Those where the outside world may have acted."),
        click.option("--not-ambiguous", is_flag=True, help="Those where it has not."),
    )

    @functools.wraps(command)
    def chosen(*args: Any, ambiguous: bool, not_ambiguous: bool, **options: Any) -> Any:
        if ambiguous and not_ambiguous:
            raise click.UsageError("no letter is --ambiguous and --not-ambiguous at once: leave both out for letters of either kind")
        return command(*args, ambiguous=ambiguous if ambiguous or not_ambiguous else None, **options)

    wanted: Callable[..., Any] = chosen
    for option in reversed(options):
        wanted = option(wanted)
    return wanted


CHECKED = click.option("--provider-checked", is_flag=True, help="Yes, the provider was asked about the ambiguous ones.")


@click.group()
def letters() -> None:
    """Look at the jobs that gave up, and retry or discard them."""


@letters.command(name="list")
@which
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Letters to show.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, with arguments and causes whole.")
@click.pass_obj
def list_(
    target: Target, job_ids: tuple[str, ...], actor_type: str | None, job: str | None, ambiguous: bool | None, limit: int, as_json: bool
) -> None:
    """List them, the oldest first, or JOB_IDS alone."""
    with operator_of(target) as operator:
        found = operator.letters.list(job_ids, actor_type=actor_type, job=job, ambiguous=ambiguous, limit=limit)
    columns = ("job_id", "actor_type", "actor_id", "job", "attempts", "ambiguous", "dead_ms", "cause")
    show.rows(found, columns, as_json=as_json, empty="no dead letters")
    if len(found) == limit and not as_json:
        click.echo(f"there may be more: --limit {limit * 2}", err=True)


@letters.command(name="show")
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_obj
def show_(target: Target, job_id: str, as_json: bool) -> None:
    """Show the letter JOB_ID, and what to do about it."""
    with operator_of(target) as operator:
        found = operator.letters.list([job_id])
    if not found:
        raise click.ClickException(f"there is no dead letter {job_id}: it was tried again or discarded, or never was")
    if as_json:
        show.rows(found, (), as_json=True, empty="")
        return
    for line in _lines(found[0]):
        click.echo(line)


def _lines(letter: Letter) -> list[str]:
    what = "may have acted: ask the provider about this job id" if letter.ambiguous else "did not act: it may be tried again"
    return [
        f"job        {letter.job_id}",
        f"of         {letter.actor_type}/{letter.actor_id} (tenant {letter.tenant}), {letter.job}",
        f"arguments  {letter.payload}",
        f"attempts   {letter.attempts}, the last one failed with: {letter.cause}",
        f"the outside world {what}",
        f"next       akter letters {'retry --provider-checked' if letter.ambiguous else 'retry'} {letter.job_id}",
    ]


@letters.command()
@which
@CHECKED
@BY
@WHY
@click.pass_obj
def retry(
    target: Target,
    job_ids: tuple[str, ...],
    actor_type: str | None,
    job: str | None,
    ambiguous: bool | None,
    provider_checked: bool,
    by: str,
    why: str,
) -> None:
    """Make new jobs of the letters JOB_IDS.

    Or of all that the options name, up to 1 000 at once.
    """
    _named(job_ids, actor_type, job, ambiguous)
    with operator_of(target, by) as operator:
        done = operator.letters.retry(
            job_ids, actor_type=actor_type, job=job, ambiguous=ambiguous, provider_checked=provider_checked, why=why
        )
    for one in done:
        click.echo(f"akter: {one.job_id} is tried again as {one.new_job_id}")
    _more(done, "retry")


@letters.command()
@which
@CHECKED
@BY
@WHY
@click.option("--yes", is_flag=True, help="Yes, they are not needed any more.")
@click.pass_obj
def discard(
    target: Target,
    job_ids: tuple[str, ...],
    actor_type: str | None,
    job: str | None,
    ambiguous: bool | None,
    provider_checked: bool,
    by: str,
    why: str,
    yes: bool,
) -> None:
    """Delete the letters JOB_IDS; audit rows keep them.

    Or all that the options name, up to 1 000 at once.
    """
    _named(job_ids, actor_type, job, ambiguous)
    if not yes:
        raise click.ClickException("a discarded letter cannot be tried again: say --yes")
    with operator_of(target, by) as operator:
        done = operator.letters.discard(
            job_ids, actor_type=actor_type, job=job, ambiguous=ambiguous, provider_checked=provider_checked, why=why
        )
    click.echo(f"akter: discarded {len(done)}")
    _more(done, "discard")


def _named(job_ids: tuple[str, ...], actor_type: str | None, job: str | None, ambiguous: bool | None) -> None:
    if not job_ids and actor_type is None and job is None and ambiguous is None:
        raise click.UsageError("say which letters: their job ids, or --type, --job, --ambiguous or --not-ambiguous")


def _more(done: Sequence[Any], verb: str) -> None:
    if len(done) == MOST:
        click.echo(f"akter: that were {MOST}, and there may be more: {verb} again", err=True)
    elif not done:
        click.echo("akter: no such dead letters")
