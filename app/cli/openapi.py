"""`tenure openapi`: the document that clients are generated from, without a database."""

from __future__ import annotations

import json

import click

from app.http import openapi
from app.http.application import build
from app.registry import PRIMITIVES


@click.command()
@click.option("--version", "version", type=click.Choice(["3.1", "3.0"]), default="3.1", help="Which OpenAPI version.")
def command(version: str) -> None:
    """Print the OpenAPI document of this release."""
    document = build(None, [primitive.router for primitive in PRIMITIVES]).openapi()
    click.echo(json.dumps(document if version == "3.1" else openapi.downgrade(document), indent=2, ensure_ascii=False))
