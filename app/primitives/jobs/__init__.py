"""Durable jobs: work that is handed out one reservation at a time, until it has ended for a reason.

Guarantees
    A job whose enqueue was answered is on disk, and ends in one of `succeeded`, `dead`, `cancelled`, or stays `unknown`
    until a verdict. At any moment at most one reservation of a job is valid; its fence is greater than every one before.
    A settlement counts only with the token of the newest, unexpired reservation. Enqueues, claims and settlements may be
    repeated after a lost answer and give the same answer.
    What the contract of a type promises (its terms) counts from the commit that put it, on every replica. A death enqueues the
    handler that those terms name, once, in the same transaction.

States
    scheduled --due--> available --claim--> running --complete--> succeeded
        ^                  ^                  |--fail(retry)----> scheduled, or dead when the budget is spent
        |                  |--release---------|--fail------------> dead
        |                                     |--unknown---------> unknown --verdict--> succeeded | available | dead
        '------------- lease lost ------------|   (lease lost: scheduled, dead, cancelled or unknown, by policy)
    scheduled, available --cancel--> cancelled;   dead, cancelled --retry--> available

Races
    Two claims at once: rows locked by one are skipped by the other; the UPDATE repeats the condition and is counted.
    Settlement against lease loss: whoever commits first wins; the other's UPDATE matches nothing.
    Enqueue against enqueue with one key: the key table's primary key decides; the loser's unit runs again and replays.

Not promised
    Strict order: within a flow it is priority, then availability, then age, but concurrent claims may overtake each other.
    That work runs once: a worker that is cut off from Tenure may go on running. Pass the fence on to what it writes to.
"""
