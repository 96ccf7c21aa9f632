"""Locks: a name is held by at most one holder at a time, for as long as its lease lasts.

    free ──acquire──▶ held ──release──▶ free
      ▲                │ ├── break (an operator) ──▶ free
      └── lease ends ──┘ └── renew ──▶ held

Guarantees
- Two unexpired reservations of one name never exist, whatever the clocks of callers and replicas say.
- Each grant of a name has a higher fence than the one before, also after release, expiry and purge. A lease can end while its
  holder is paused and does not know; what it writes to must compare fences, or ask (`verify`).
- Those who wait get the lock in the order of their arrival, across replicas. A newcomer does not pass them.

Races
- Acquire against acquire: both lock the name's row; the second sees the first one's reservation.
- Release, renewal or break against the end of the lease: the write repeats its condition by the database's own clock.
- A process that is killed or frozen with waiting callers: their places count for nothing once it has not been heard of for
  three seconds.

What it does not promise: that a holder has stopped when its lease has ended. No service can; that is what the fence is for.
"""
