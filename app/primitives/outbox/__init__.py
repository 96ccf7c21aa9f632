"""The outbox: intents to send something to somebody, recorded once, handed out one reservation at a time.

    prepared ──confirm──▶ pending ──claim──▶ sending ──▶ sent
        │                 ▲    │                │ ├────▶ dead       rejected, or attempts spent
        └─abort─▶ aborted │    └── blocked      │ └────▶ unknown ──verdict──▶ sent | pending | dead
                          └── backoff ◀─ retry ─┘

Guarantees
- One intent for one `message_key`, however often and however it is recorded: over HTTP, or by a plain INSERT into the table
  `outbox` in the producer's own transaction, from where it is adopted.
- What may have reached its destination is `unknown`. Nothing but a verdict takes it out of there: no claim, purge, requeue or
  release of stale claims. A lost lease is `unknown` too, unless the destination is declared idempotent.
- Messages of one destination with one `ordering_key` are sent one after the other, in the order of their recording. One that
  waits for a retry or a verdict keeps those behind it `blocked`.
- A message that waits for its backoff costs a claim nothing and hides nothing.

What it does not promise: that a destination gets a message once. That takes a destination that knows `message_key` again, or
a verdict for each doubt.
"""
