"""Contracts: what a job type promises, whether that keeps the reliability standard, and whether practice keeps to it.

Guarantees
    A contract, the terms that jobs decide by and the audit entry are committed together. What was registered is given back
    as it was, its payload schema byte for byte. One set of rules judges HTTP, manifests and the command line; a finding says
    what is wrong, where, and how to mend it. An exemption needs a reason, is always reported, and ends with its last day
    (UTC, by the database's clock); from then on its rule counts as violated, without anybody writing anything.

States
    none. A contract is valid or violated as of a moment: by its content, the settings and the day.

Races
    Two registrations of one type at once: the row's lock puts them in order, the later one stands whole.
    A registration against an enqueue: the enqueue goes by the terms that it reads; the jobs primitive says which.

Not promised
    A violating contract is stored: whether its type may be enqueued is the enqueue policy's to say. Drift shows figures of
    at most 25 hours, lacks the last seconds of other replicas, and proves nothing by itself. What a manifest excludes is not
    stored.
"""
