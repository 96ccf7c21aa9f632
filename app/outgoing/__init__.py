"""Everything that an HTTP call leaving the service needs, and nothing of databases or of the outbox.

    addresses   which addresses may be called        urls, headers   what may be registered
    resolving   names to addresses, off the loop     backend         checked connections, and what was written to them
    client      `Outgoing.send(Call) -> Reply`       verdicts        what a Reply means for a message
    cloudevents, signatures   what is sent           vault           secrets at rest

The border that matters: NOT_SENT says that no byte of the request was handed to a connection, and is proven by our own
stream. Everything else without a whole answer is MAYBE_SENT. One connection serves one call (docs/decisions/0021).
"""
