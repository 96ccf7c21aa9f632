"""SQL of the outbox: one function for each statement, no decisions. Only ops call it."""
