"""The verbs of the outbox. Decisions live here; each op gets an open transaction and its commands, and gives outcomes."""
