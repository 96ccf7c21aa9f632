"""Measures the service against the bare database, in one run and on one server, and prints the ratios (`make bench`).

    stand.py    a private database server, the service as a real process, and what they use of the machine
    tape.py     the floor: the very statements of the ops, recorded once and replayed by one bare connection
    wrk.py      load, sent by wrk with load.lua
    cases.py    the throughput cases     waits.py   pickup, idle waiting     backlog.py   claim latency against backlog
    report.py   the table and the JSON

A figure of another run or another machine says nothing here: each ratio divides two figures of this run.
"""

import os

os.environ["TENURE_TEST_DISK"] = "1"  # before anything imports tests.servers: a commit must wait for the disk
