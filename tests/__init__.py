"""Tests of Tenure. Helpers that tests share live here or in `servers`; nothing of the service does."""
