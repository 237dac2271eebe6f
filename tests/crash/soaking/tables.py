"""The soak's own tables, and a trigger that keeps who took what out of the outbox."""

from __future__ import annotations

from typing import Any

import psycopg

# `soak_effects` has no key on purpose: what is doubled is to be counted, not refused.
CREATE = """
CREATE TABLE public.soak_effects (tag text NOT NULL, actor text NOT NULL, number integer NOT NULL);
CREATE TABLE public.soak_ticks (canary text NOT NULL, number integer NOT NULL, at timestamptz NOT NULL);
CREATE TABLE public.soak_outside (tag text PRIMARY KEY, id text NOT NULL, target text NOT NULL, member text NOT NULL);
CREATE TABLE public.soak_gone (id text NOT NULL, attempts integer NOT NULL, at timestamptz NOT NULL, xid text NOT NULL);
CREATE FUNCTION public.soak_goes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.soak_gone VALUES (OLD.intent_id, OLD.attempts, clock_timestamp(), pg_current_xact_id()::text);
    RETURN NULL;
END $$;
CREATE TRIGGER soak_goes AFTER DELETE ON akter.actor_outbox FOR EACH ROW EXECUTE FUNCTION public.soak_goes();
"""

UNTOLD = "(SELECT count(*) FROM akter.actor_subscriptions WHERE due_at_ms IS NOT NULL)"
PENDING = f"SELECT count(*) + {UNTOLD} FROM akter.actor_outbox WHERE actor_type <> 'Canary'"
DUE = "SELECT count(*) FROM akter.actor_outbox WHERE due_at_ms < extract(epoch FROM clock_timestamp()) * 1000"
LEFT = f"SELECT count(*) + {UNTOLD} FROM akter.actor_outbox"
TICKS = "SELECT count(*) FROM public.soak_ticks"
RECEIPTS = "SELECT count(*) FROM akter.actor_receipts WHERE actor_type = 'Node'"


def create(url: str) -> None:
    """Make the tables."""
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(CREATE.encode())


def one(url: str, statement: str) -> Any:
    """The one value that a statement returns, over a connection of its own."""
    with psycopg.connect(plain(url), autocommit=True, connect_timeout=10) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def plain(url: str) -> str:
    """A URL as psycopg takes it."""
    return url.replace("+psycopg", "")
