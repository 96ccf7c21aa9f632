"""The service held against its own OpenAPI document by machine-made requests."""
