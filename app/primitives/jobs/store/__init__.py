"""SQL of the jobs: one function per statement, no decisions. Only ops call it. A file for each family of verbs."""
