"""`tenure openapi`: the document that clients are generated from, without a database."""

from __future__ import annotations

import json

import click

from app import settings as settings_module
from app.db.database import Database
from app.http import openapi
from app.http.application import build
from app.registry import PRIMITIVES
from app.runtime.runtime import Runtime


@click.command()
@click.option("--version", "version", type=click.Choice(["3.1", "3.0"]), default="3.1", help="Which OpenAPI version.")
def command(version: str) -> None:
    """Print the OpenAPI document of this release."""
    settings = settings_module.load()
    runtime = Runtime(settings, Database(settings.database_url.get_secret_value()))  # neither opened nor started
    document = build(runtime, [primitive.router for primitive in PRIMITIVES]).openapi()
    click.echo(
        json.dumps(document if version == "3.1" else openapi.document_30(document), indent=2, ensure_ascii=False)
    )
