"""Tenure: durable coordination over HTTP. `app.main.create_app` assembles it; `app.__main__` is the command."""

__version__ = "0.1.0"
