"""The verbs of contracts: put, get, list, check; and drift, which compares promise and practice."""
