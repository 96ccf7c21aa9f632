"""Contracts as values: what may be declared, the rules, and their judgements. Pure; quick to import but for `terms`."""
