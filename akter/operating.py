"""`Operator`: look after a deployment from code, as the commands `akter status`, `doctor`, `outbox`, `inspect`, `actor` and others do.

It needs the database, not the actors: none of the application's classes has to be imported.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from akter import encoding, given, schema_state
from akter.errors import AkterError, ConfigurationError, PayloadInvalid
from akter.finding import Finding, findings, kept_back, unreadable
from akter.identity import DEFAULT_TENANT, Address, Placement, address
from akter.letters import Letters
from akter.limits import seconds as checked
from akter.overview import Health, Overview
from akter.registry import events_kept, readable
from akter.store import apart, backlog, lagging, life, listing, presence, removal, repair
from akter.store.backlog import Count, Cursor, Reason, Waiting
from akter.store.lagging import Lagging
from akter.store.life import Life
from akter.store.listing import Listed
from akter.store.presence import IDLE_MS, SILENT_MS, Present
from akter.store.removal import Removed
from akter.store.summary import Name
from akter.tables import SCHEMA

if TYPE_CHECKING:
    from akter.app import Akter

__all__ = [
    "Operator",
    "Overview",
    "Health",
    "Present",
    "Waiting",
    "Count",
    "Finding",
    "Lagging",
    "Listed",
    "Life",
    "Removed",
    "SILENT_MS",
    "IDLE_MS",
]

_PATIENCE = 10.0


class Operator:
    """Looks after the deployment in one database. `by` is who does it, for the audit rows.

        operator = Operator(engine, by="ada")
        for row in operator.waiting(reason="parked"):
            operator.discard(row.intent_id, why="the shop closed")

    Every statement is limited to ten seconds. What it changes commits with its audit row, or not at all. Raises `SchemaError` where there
    are no tables of akter's, or none that its role may read, and `PayloadInvalid` for an argument that cannot be looked for, such as a
    class in place of its stored name.
    """

    def __init__(self, engine: Engine, *, schema: str = SCHEMA, by: str = "") -> None:
        if not isinstance(cast(object, engine), Engine):
            raise ConfigurationError(f"Operator(...) takes an Engine, create_engine(...) or app.engine, not {engine!r}")
        given.texts("Operator", schema=schema, by=by)
        self._engine, self._schema, self._by = engine, schema, by

    @property
    def letters(self) -> Letters:
        """The dead letters, and what can be done with them."""
        return Letters(self._reading, self._writing, self._hint, self._by)

    def runners(self) -> list[Present]:
        """Every runner that was here within the last day, the newest sign of life first; those that are `alive` run."""
        with self._reading() as connection:
            return presence.present(connection)

    def overview(self) -> Overview:
        """Who runs, what waits, and what is paused."""
        with self._reading() as connection:
            runners = presence.present(connection)
            paused = presence.paused(connection)
            given = presence.served(runners), presence.held_back(paused)
            return Overview(runners, [*backlog.counts(connection, *given), *lagging.counts(connection, *given)], paused)

    def waiting(
        self,
        *,
        limit: int = 100,
        after: Cursor | None = None,
        reason: Reason | None = None,
        target_type: str | None = None,
        intent_id: str | None = None,
    ) -> list[Waiting]:
        """A page of the rows that wait; the next page begins `after` the `cursor` of the last row."""
        given.number("waiting", "limit", limit)
        given.optional("waiting", target_type=target_type, intent_id=intent_id)
        if reason is not None:
            given.one_of("waiting", "reason", reason, backlog.REASONS)
        if after is not None and not given.is_cursor(after):
            raise PayloadInvalid(f"waiting(...): after is the cursor of the last row of a page, not {after!r}")
        with self._reading() as connection:
            served, paused = presence.served_and_paused(connection)
            wanted = {"reason": reason, "target_type": target_type, "intent_id": intent_id}
            return backlog.page(connection, served, paused, limit=limit, after=after, **wanted)  # type: ignore[arg-type]

    def findings(self, app: Akter | None = None) -> list[Finding]:
        """What is wrong now, each with what to do.

        With an `app`, also what is stored that its code is too old to read, and the events that are kept longer than it says, because
        somebody follows them and was not told of them yet.
        """
        if app is not None and not hasattr(app, "actors"):
            raise PayloadInvalid(f"findings(...): app is an Akter, not {app!r}")
        with self._reading() as connection:
            found = findings(connection)
            if app is None:
                return found
            return [
                *unreadable(connection, readable(app.actors)),
                *found,
                *kept_back(connection, events_kept(app.actors, app.limits.keep_events_ms)),
            ]

    def health(self, *, label: str = "", silent: float = SILENT_MS / 1000, idle: float = IDLE_MS / 1000) -> Health:
        """Whether a runner whose label begins with `label` lives and looks for work.

        `silent`: seconds without a sign of life after which a runner is gone. `idle`: seconds without a look for work after which it is
        stuck. A runner whose seats are all taken by slow handlers still looks; one all of whose threads of a family are in handlers past
        their time limit is hung. Raises `ConfigurationError` for what is no time.
        """
        given.texts("health", label=label)
        checked("health: silent", silent)
        checked("health: idle", idle)
        with self._reading() as connection:
            found = [runner for runner in presence.present(connection) if runner.label.startswith(label)]
        living = [runner for runner in found if runner.silent_ms <= silent * 1000]
        staying = [runner for runner in living if not runner.stopping]
        looking = [runner for runner in staying if runner.idle_ms + runner.silent_ms <= idle * 1000]
        working = [runner for runner in looking if not runner.hung]
        overdue = sum(sum(runner.overdue.values()) for runner in living)
        late = f", threads in handlers past their time limit: {overdue}" if overdue else ""
        of = f" whose label begins with {label!r}" if label else ""
        if working:
            return Health(True, f"live runners{of}: {len(living)}, looking for work: {len(working)}{late}")
        if looking:
            return Health(False, f"hung: no live runner{of} has a thread left for all of its work: {len(looking)}{late}")
        if staying:
            return Health(False, f"stuck: none of the live runners{of} looked for work within {idle:g} seconds: {len(staying)}")
        if living:
            return Health(False, f"stopping: the live runners{of} take no more work: {len(living)}")
        return Health(False, f"nobody is running a Runner{of}")

    def discard(self, intent_id: str, *, why: str = "") -> None:
        """Delete a message for ever; its audit row keeps it. Raises `AkterError` when it is not there or a runner holds it."""
        given.texts("discard", intent_id=intent_id, why=why)
        with self._writing() as connection:
            _check(intent_id, repair.discard(connection, intent_id, self._by, why))

    def redirect(self, intent_id: str, *, to: Mapping[str, str], why: str = "") -> None:
        """Give a message another `target_type`, `target_id` or `command`, due at once.

        Whether the receiver can read it shows when it is delivered. Raises `AkterError` when it is not there or a runner holds it.
        """
        given.texts("redirect", intent_id=intent_id, why=why)
        if not isinstance(cast(object, to), Mapping) or not to or not set(to) <= {"target_type", "target_id", "command"}:
            raise ConfigurationError("a redirect says what changes: target_type, target_id or command")
        given.texts("redirect", **to)
        with self._writing() as connection:
            _check(intent_id, repair.redirect(connection, intent_id, to, self._by, why))
            self._hint(connection)

    def pause(self, family: str, target_type: str = "", *, why: str = "") -> bool:
        """Let no runner claim work of a family, or of one type in it; returns whether it was not paused before. What runs goes on."""
        given.one_of("pause", "family", family, list(backlog.KIND))
        given.texts("pause", target_type=target_type, why=why)
        with self._writing() as connection:
            return presence.pause(connection, family, target_type, why)

    def resume(self, family: str, target_type: str = "") -> bool:
        """Let it be claimed again, now; returns whether it was paused."""
        given.one_of("resume", "family", family, list(backlog.KIND))
        given.texts("resume", target_type=target_type)
        with self._writing() as connection:
            was = presence.resume(connection, family, target_type)
            self._hint(connection)
            return was

    def actors(self, kind: str, *, tenant: str = DEFAULT_TENANT, after: str = "", limit: int = 100) -> list[Listed]:
        """The actors of a type that were created or whose state was written, in the order of their ids, behind the id `after`.

        Raises `AkterError` for a type that was never stored here.
        """
        given.texts("actors", kind=kind, tenant=tenant, after=after)
        given.number("actors", "limit", limit)
        with self._reading() as connection:
            _placement(connection, kind)
            wanted = {"actor_type": kind, "tenant_id": tenant, "after": after, "limit": limit}
            return [Listed(*row) for row in connection.execute(listing.page(), wanted)]

    def life(self, kind: str, id: str, *, tenant: str = DEFAULT_TENANT, limit: int = 100) -> Life:
        """What is stored of one actor, the newest `limit` rows of each kind; raises `AkterError` when that is nothing."""
        given.texts("life", kind=kind, id=id, tenant=tenant)
        given.number("life", "limit", limit)
        with self._reading() as connection:
            where = _located(connection, kind, id, tenant)
            if (found := life.read(connection, where, limit)) is None:
                raise AkterError(f"nothing is stored of {where}: no command ever came to it")
            return found

    def reset(self, kind: str, id: str, *, tenant: str = DEFAULT_TENANT, why: str = "") -> Removed:
        """Let an actor begin again with its defaults. Raises `AkterError` when there is none, it is busy, or a runner holds its messages.

        What becomes of its messages, timers, jobs, receipts and events says `docs/inspecting.md`.
        """
        given.texts("reset", kind=kind, id=id, tenant=tenant, why=why)
        with self._removing(kind, id, tenant) as (connection, where):
            return removal.reset(connection, where, self._by, why)

    def delete(self, kind: str, id: str, *, tenant: str = DEFAULT_TENANT, with_receipts: bool = False, why: str = "") -> Removed:
        """Delete an actor with its events, dead letters and what others asked of it. Raises what `reset` raises.

        Its receipts stay until retention takes them, so that no command of its life runs again, unless they are to go, too.
        """
        given.texts("delete", kind=kind, id=id, tenant=tenant, why=why)
        with self._removing(kind, id, tenant) as (connection, where):
            return removal.erase(connection, where, self._by, why, with_receipts=with_receipts)

    @contextmanager
    def _removing(self, kind: str, id: str, tenant: str) -> Iterator[tuple[Connection, Address]]:
        with self._writing() as connection:
            where = _located(connection, kind, id, tenant)
            try:
                yield connection, where
            except removal.Absent:
                raise AkterError(f"nothing is stored of {where}: no command ever came to it") from None
            except removal.Held as held:
                raise AkterError(
                    f"a runner holds messages for {where} now ({held}): try again, or first let it finish with `akter pause intents "
                    f"--type {kind}`"
                ) from None
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == "55P03":
                    raise AkterError(f"{where} is busy with a turn: try again") from error
                raise

    def lagging(self, *, limit: int = 100, attempts: int = 0, subscriber_type: str | None = None) -> list[Lagging]:
        """Followers of events that are behind, the one that is due longest first; only those tried `attempts` times or more."""
        given.number("lagging", "limit", limit)
        given.number("lagging", "attempts", attempts, least=0, most=2_147_483_647)
        given.optional("lagging", subscriber_type=subscriber_type)
        with self._reading() as connection:
            served, paused = presence.served_and_paused(connection)
            return lagging.page(connection, served, paused, limit=limit, attempts=attempts, subscriber_type=subscriber_type)

    def skip_events(
        self, source: str, subscription: str, subscriber_id: str = "", *, through: int, tenant: str = DEFAULT_TENANT, why: str = ""
    ) -> None:
        """Let `subscription`, "Type.name", pass over what it was not told of `source`, "Type/id", up to and with the cursor `through`.

        It is told of a `Gap`, or counts one. `subscriber_id` is for subscriptions without `to`. Raises `AkterError` when nobody follows so,
        when it is past that or the source not yet there, and while a runner tells it.
        """
        given.texts("skip_events", source=source, subscription=subscription, subscriber_id=subscriber_id, tenant=tenant, why=why)
        if isinstance(cast(object, through), bool) or not isinstance(cast(object, through), int) or through < 1:
            raise PayloadInvalid(f"skip_events(...): through is the number of the last event to pass over, 1 or more, not {through!r}")
        (kind, _, id), (follower, _, name) = source.partition("/"), subscription.partition(".")
        with self._writing() as connection:
            who = Name(follower, name, subscriber_id)
            done = lagging.skip(connection, tenant, kind, id, who, through, self._by, why)
            if done != "done":
                raise AkterError(
                    _UNSKIPPED[done].format(source=source, subscription=f"{subscription} {subscriber_id}".rstrip(), through=through)
                )
            self._hint(connection)

    def forget_subscription(self, subscription: str, *, why: str = "") -> int:
        """Forget `subscription`, "Type.name", which left the code together with its type; returns how many sources it followed."""
        given.texts("forget_subscription", subscription=subscription, why=why)
        follower, _, name = subscription.partition(".")
        with self._writing() as connection:
            return lagging.forget(connection, follower, name, self._by, why)

    def served(self) -> list[str]:
        """The types that live runners serve."""
        return presence.served(self.runners())

    def _hint(self, connection: Connection) -> None:
        connection.execute(apart.notify(), {"channel": apart.channel(self._schema), "said": str(uuid.uuid4())})

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._transaction("REPEATABLE READ", read_only=True)

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._transaction("READ COMMITTED", read_only=False)

    @contextmanager
    def _transaction(self, isolation: Any, *, read_only: bool) -> Iterator[Connection]:
        # Said explicitly: an engine of the application's may be in autocommit, and its database have other defaults.
        options = {"isolation_level": isolation, "postgresql_readonly": read_only, "schema_translate_map": {SCHEMA: self._schema}}
        with encoding.opened(self._engine) as given:
            connection = given.execution_options(**options)
            try:
                with connection.begin():
                    presence.limit(connection, _PATIENCE)
                    yield connection
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) in {*schema_state.UNDEFINED, schema_state.INSUFFICIENT_PRIVILEGE}:
                    # Tables or rights are missing: which, and who makes them, is said in words.
                    schema_state.verify(connection, schema=self._schema)
                raise


_UNSKIPPED = {
    "absent": "{subscription} does not follow {source}: see akter subscriptions list",
    "claimed": "a runner is telling {subscription} of {source} right now: see what becomes of it first",
    "behind": "{subscription} is past the cursor {through} of {source} already",
    "ahead": "{source} has no event {through} yet",
}


def _check(intent_id: str, done: repair.Done) -> None:
    if done == "absent":
        raise AkterError(f"there is no message {intent_id} in the outbox: it was delivered, cancelled or discarded")
    if done == "schedule":
        raise AkterError(f"{intent_id} belongs to a schedule, and its class says which command that runs: change @cron in the code")
    if done == "claimed":
        raise AkterError(f"a runner holds the message {intent_id} now, and a change would come too late: see what becomes of it first")


def _located(connection: Connection, kind: str, id: str, tenant: str) -> Address:
    return address(_placement(connection, kind), tenant, kind, id)


def _placement(connection: Connection, kind: str) -> Placement:
    if (found := life.placement(connection, kind)) is None:
        known = ", ".join(life.known_types(connection)) or "none"
        raise AkterError(f"no actor of the type {kind!r} was ever stored here; the types are: {known}")
    return "tenant" if found == "tenant" else "actor"
