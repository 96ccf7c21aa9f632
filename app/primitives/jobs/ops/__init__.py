"""The verbs of jobs, a file each. Decisions live here; SQL does not."""
