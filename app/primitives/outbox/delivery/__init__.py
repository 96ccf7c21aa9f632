"""Delivery by the service (`mode: http`): in every replica at once, each message by whoever has claimed it.

    couriers   one courier for each destination, kept as the destinations are set
    courier    claims as much as may be under way, sends, and settles; no transaction is open during a call
    calls      a message as a signed CloudEvent
    breaker    when a destination is left alone for a while

What a call's outcome means is told by `app.outgoing.verdicts`; what becomes of the message is decided by `ops.settle`, as for
any other holder. A process that dies in the middle of a call leaves a lease that ends: the message is `unknown`.
"""
