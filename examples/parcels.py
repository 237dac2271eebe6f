"""Kill it by hand: a thousand parcels, each to be delivered once, whatever becomes of those that deliver them.

Here, the parcels are sent and watched; the relay is yours: `akter run akter.examples.parcels:app` in another terminal of the same
directory, as often as you like, to be ended by `kill -9`.
"""

from __future__ import annotations

import sys
import time

from sqlalchemy import text

from akter import Actor, Akter, command

COUNTED = text(
    "SELECT count(*) FILTER (WHERE value->>'deliveries' = '1'), count(*) FILTER (WHERE value->>'deliveries' <> '1')"
    " FROM akter_views.state WHERE type = 'Parcel' AND id LIKE :ids"
)


class Parcel(Actor):
    """Something that must arrive once."""

    deliveries: int = 0

    @command(internal=True)
    def deliver(self) -> None:
        """Take a while, so that there is something to kill; the count is saved when this has returned, or not at all."""
        time.sleep(0.5)
        self.deliveries += 1


app = Akter("embedded:./data", actors=[Parcel])


def main(parcels: int) -> None:
    """Send them in one transaction, and tell every second how many arrived, until all have."""
    app.migrate()
    day = f"{time.time():.0f}"
    with app.engine.begin() as connection:
        app.within(connection).send_many([(app.actor(Parcel, f"{day}-{number}").deliver, {}) for number in range(parcels)])
    print(f"{parcels} parcels are on their way; to deliver them, here and in another terminal: akter run akter.examples.parcels:app")
    once = more = still = 0
    while once + more < parcels:
        time.sleep(1)
        before = once
        with app.engine.connect() as connection:
            once, more = connection.execute(COUNTED, {"ids": f"{day}-%"}).one()
        still = still + 1 if once == before else 0
        if not still:
            print(f"{once} delivered once, {more} more than once, {parcels - once - more} on their way", flush=True)
        elif still == 5:
            print("nobody delivers, or a killed runner held what is left: its leases end 37 seconds after they began", flush=True)
    app.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
