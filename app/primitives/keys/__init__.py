"""API keys: who may call, and as what.

Guarantees
    The secret of a key is shown once, in the answer that made it; the database holds its SHA-256 alone. A new key and a
    revocation are in force within 3 seconds on every replica: each keeps a copy of all keys, renewed every 1.5 seconds and
    when a key is unknown (at most twice a second). A revoked key stays in the list. The service is open (on loopback) only
    while no key was ever made, so revoking the last one never opens it. The first key must be an admin's.

States
    in force --revoke--> revoked;   in force --its time--> expired

Races
    Two revocations at once: the conditional UPDATE lets one win; the other is answered `replayed`. Two first keys at once:
    both stand.

Not promised
    Making a key is not repeatable: if the answer was lost, its secret is lost; revoke it by its name and make another.
    `last_used_at` is written at most once a minute, and the last minute is lost when the process is killed. While the
    database is away the last copy counts for 60 seconds, then every call is refused with 503.
"""
