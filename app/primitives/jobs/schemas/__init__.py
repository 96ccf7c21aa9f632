"""Request and response models of the jobs."""
