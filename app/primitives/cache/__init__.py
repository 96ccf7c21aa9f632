"""The cache: values that every replica shares, each computed by one caller at a time.

    (nothing) ─remember─▶ filling ──fill──▶ fresh ─ttl─▶ stale ─stale_seconds─▶ (nothing)
        ▲                  │   ▲              ▲            │
        └── fill-failed, ──┘   └─────remember─┼────────────┘      PUT puts a fresh value at any time, DELETE takes it away,
            lease ends                        └── fill            a clear or a new version takes all of a namespace away

Guarantees
- Of all who miss one key, on all replicas, one is told to fill it, under a reservation; the others get the stale value at once
  if there is one, and else wait. If the filler fails or dies, the next of them is.
- A fill that comes too late is dropped: after its lease, after somebody put or deleted the key, after its namespace was cleared
  or got another version.
- A namespace that is cleared, or whose version changes, has none of its values from that moment, whatever it held; the rows are
  deleted later, in small batches. No other namespace is touched.
- `max_entries` and `max_bytes` hold when a write is answered; the entries that were used least recently make room.

Races
- Whatever writes locks the row of the namespace first, then those of its entries, lowest digest first. So a namespace has one
  writer at a time and one line of fences, and a first remember finds a row to lock. Reading takes no lock.

What it does not promise: that a value is there, or that it is true. It is a copy, which may be dropped at any time; what it was
made from decides. `used` is noted once a minute, so the least recently used is known to the minute.
"""
