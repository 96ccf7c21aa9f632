"""The verbs of the cache."""
