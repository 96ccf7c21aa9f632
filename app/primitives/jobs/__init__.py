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
    scheduled, available, blocked --cancel--> cancelled;   dead, cancelled --retry--> available

    A job with a concurrency key holds one of the key's slots while it is available or running. Where all are held, it comes to
    stand in line instead of becoming available, in the order of (priority, position):

    enqueued, due, retried --> [slot free?] --yes--> available
                                    '--------no----> blocked --a slot is let go--> available

Keys
    unique       one job of its type holds it, until it is started or has ended; an unknown job holds it. Others are given the
                 holder, give it their content (`replace`, before it was ever started) or are refused.
    debounce     one run for all enqueues of a window, with the newest content; the first claim ends the window.
    concurrency  at most `limit` jobs hold it. At every commit: if one waits, all slots are held. Use is derived, never counted.

Races
    Two claims at once: rows locked by one are skipped by the other; the UPDATE repeats the condition and is counted.
    Settlement against lease loss: whoever commits first wins; the other's UPDATE matches nothing.
    Enqueue against enqueue with one key: a unique index decides; the loser's unit runs again and finds the first.
    Enqueue against the end of the holder: both lock the key's row; whoever comes second sees what the first has done.
    Enqueue that replaces or puts off against the claim: whoever locks the job first; then its key is free, or it hands out the
    newer content.

Not promised
    Strict order: within a flow it is priority, then availability, then age, but concurrent claims may overtake each other.
    Strict preference: what is passed over for preferred queues 16 times in a row gets a turn (`turns.py`).
    That work runs once: a worker that is cut off from Tenure may go on running. Pass the fence on to what it writes to.
"""
