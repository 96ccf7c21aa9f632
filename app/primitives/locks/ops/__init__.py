"""The verbs of locks."""
