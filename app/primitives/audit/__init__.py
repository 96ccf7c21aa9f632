"""Audit: who did what to what, when, and why. Written by the verbs of operators, in their own transactions.

Guarantees
    An entry is committed together with what it tells of: neither stands without the other. An entry is never changed.
    A verb that runs again after a COMMIT without an answer leaves one entry, because the entry's id is made before the
    first try.

Races
    None: entries are only added. Their order is the order of their ids, which follow the time at which the command came in;
    two commands of different replicas within some milliseconds may be listed the other way round.

Not promised
    Work done by producers and workers is not audited; it has its own events. Entries are kept until an operator removes them
    from the table: nothing here purges them.
"""
