"""A demonstration that checks itself: every Python file of the standard library is hashed by workers in two languages, one
of which is killed on the way, and the sum of what they did is compared with a direct computation (`make demo`).

    worker.py     a worker in Python, with httpx alone: copy it
    worker.mjs    the same in JavaScript, with fetch alone: copy it
    producer.py   enqueues in batches that may be repeated
    __main__.py   starts the service and all of them, kills one worker, compares
"""
