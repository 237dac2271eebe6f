"""What a runner does about followers when it starts: the code may declare other events, or other subscriptions, than before."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy import Engine

from akter.definition import Definition
from akter.runner.single import transaction
from akter.store import declared, summary

logger = logging.getLogger("akter.runner")


def bring_up(engine: Engine, schema: str, actors: Mapping[str, Definition]) -> None:
    """Let those that were asked for follow the events that were added, and end those whose subscription left the code a day ago.

    Nothing is ever taken from what a row follows: an older process may still run. Each row changes under its source's lock, in a
    transaction of its own, so any number of runners may do this at once.
    """
    for name, definition in actors.items():
        if name != definition.name:
            continue
        for follows in definition.subscriptions.values():
            while follows.dynamic:
                with transaction(engine, schema) as connection:
                    rows = declared.narrow(connection, name, follows.name, follows.events)
                for source, who in rows:
                    with transaction(engine, schema) as connection:
                        summary.widen(connection, source, who, follows.events)
                if not rows:
                    break
        _end_those_that_left(engine, schema, name, list(definition.subscriptions))


def _end_those_that_left(engine: Engine, schema: str, subscriber_type: str, names: list[str]) -> None:
    while True:
        with transaction(engine, schema) as connection:
            rows = declared.left(connection, subscriber_type, names)
        for source, who, epoch in rows:
            with transaction(engine, schema) as connection:
                summary.end(connection, source, who, epoch)
        if not rows:
            return
        logger.info("subscription.left", extra={"akter_type": subscriber_type, "akter_rows": len(rows)})
