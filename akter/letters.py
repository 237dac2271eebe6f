"""An operator's dead letters: jobs that gave up, to be looked at, tried again or discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import cast

from sqlalchemy import Connection

from akter import given
from akter.errors import AkterError, PayloadInvalid
from akter.store import letter
from akter.store.letter import MOST, Acted, Action, Letter, Which


class Letters:
    """The dead letters of a deployment; `operator.letters`.

        operator = Operator(engine, by="ada")
        for one in operator.letters.list(ambiguous=True):
            print(one.job_id, one.cause)
        operator.letters.retry([one.job_id], provider_checked=True, why="the provider has no such charge")

    What is chosen is given by ids, or by type, job and ambiguity. Every action is one transaction with its audit rows, of up to 1 000
    letters. Of two that act on one letter at once, one finds it gone.
    """

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[Connection]],
        writing: Callable[[], AbstractContextManager[Connection]],
        hint: Callable[[Connection], None],
        by: str,
    ) -> None:
        self._reading, self._writing, self._hint, self._by = reading, writing, hint, by

    def list(
        self,
        ids: Sequence[str] = (),
        *,
        actor_type: str | None = None,
        job: str | None = None,
        ambiguous: bool | None = None,
        limit: int = 100,
        after: Letter | None = None,
    ) -> list[Letter]:
        """A page of letters, the oldest first; the next one begins `after` the last one's."""
        given.number("list", "limit", limit)
        _check("list", Which(ids, actor_type, job, ambiguous))
        cursor = None if after is None else (after.dead_at_ms, after.job_id)
        with self._reading() as connection:
            return letter.page(connection, Which(ids, actor_type, job, ambiguous), limit=limit, after=cursor)

    def retry(
        self,
        ids: Sequence[str] = (),
        *,
        actor_type: str | None = None,
        job: str | None = None,
        ambiguous: bool | None = None,
        provider_checked: bool = False,
        why: str = "",
    ) -> Sequence[Acted]:
        """Make new jobs of letters, due at once, under ids of their own; the provider sees another idempotency key.

        Raises `AkterError` when one is ambiguous and `provider_checked` is not said: the outside world may have acted already.
        """
        return self._act("retry", Which(ids, actor_type, job, ambiguous), provider_checked, why)

    def discard(
        self,
        ids: Sequence[str] = (),
        *,
        actor_type: str | None = None,
        job: str | None = None,
        ambiguous: bool | None = None,
        provider_checked: bool = False,
        why: str = "",
    ) -> Sequence[Acted]:
        """Delete letters for ever; their audit rows keep them. Raises `AkterError` as `retry` does."""
        return self._act("discard", Which(ids, actor_type, job, ambiguous), provider_checked, why)

    def _act(self, action: Action, which: Which, checked: bool, why: str) -> Sequence[Acted]:
        _check(action, which)
        given.texts(action, why=why)
        if which == Which():
            raise AkterError(f"say which letters to {action}: by their ids, or by actor_type, job or ambiguous")
        with self._writing() as connection:
            rows = letter.lock(connection, which)
            missing = [id for id in which.ids if id not in {row["job_id"] for row in rows}]
            if missing:
                raise AkterError(f"there is no such dead letter: {', '.join(missing)}; it was tried again or discarded, or never was")
            unknown = [row["job_id"] for row in rows if row["ambiguous"]]
            if unknown and not checked:
                raise AkterError(
                    f"{len(unknown)} of these letters are ambiguous, the outside world may have acted: ask the provider about "
                    f"{', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}, "
                    "and then say provider_checked=True, or --provider-checked"
                )
            done = letter.act(connection, rows, action, self._by, why)
            if done and action == "retry":
                self._hint(connection)
        return done


def _check(verb: str, which: Which) -> None:
    given.optional(verb, actor_type=which.actor_type, job=which.job)
    # One id in place of a list of them would be taken for its letters.
    if isinstance(which.ids, str) or not isinstance(cast(object, which.ids), Sequence):
        raise PayloadInvalid(f"{verb}(...): ids is a list of job ids, not {which.ids!r}")
    for id in which.ids:
        given.texts(verb, ids=id)


__all__ = ["MOST", "Acted", "Letter", "Letters"]
