"""Idempotency: the work behind one key is done by at most one owner at a time, and its outcome is told to all who come after.

              ┌──────────── fail(retry), verdict reopen ───────────┐
              ▼                                                    │
    (new) ─check─▶ running ──complete──▶ completed      open ◀─────┤
                     │ ├────fail───────▶ failed           │        │
                     │ └────unknown────▶ unknown ──verdict┼────────┘──▶ completed | failed
                     └─ lease ends: as its owner chose ───┴──▶ unknown | open | failed

Guarantees
- One owner at a time, by reservation; each grant of a key has a higher fence than the one before, also after a purge.
- A key that was completed gives its stored result, byte for byte, to everyone who sends the same request, until its retention
  is over. Another request under the same key is refused.
- The same work is not done twice in silence. What becomes of a key whose owner is lost is what the owner chose when it came:
  `reconcile` keeps it `unknown` until there is a verdict, `fail` fails it, and only `reopen` lets another do the work again,
  who is told so (`attempt`).
- Keys and requests are not stored, only their digests.

Races
- Check against check: the primary key and the row's lock decide; the second sees the first.
- A settlement against the end of the lease: the write repeats its condition by the database's own clock.

What it does not promise: that an effect outside of the database happens once. An owner that is lost between its effect and
`complete` leaves a key that somebody has to find out about; that is what `unknown` says.
"""
