"""Programs for those who work on Tenure. Nothing of the service is here, and the service imports nothing from here."""
