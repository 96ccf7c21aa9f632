"""The verbs of idempotency."""
