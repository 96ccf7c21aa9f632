"""The HTTP client of the operator commands: where the service is, which key to send, and what its answers mean.

Proxies from the environment are not used: an API key must not travel through one that somebody set for web browsing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
import httpx

from app.cli.failure import AWAY, FAILED, CommandFailed, of_problem

TIMEOUT_SECONDS = 30.0


def base_url() -> str:
    """TENURE_URL, else what `tenure serve` with the same environment listens on."""
    host = os.environ.get("TENURE_HOST", "127.0.0.1")
    near = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    named = f"[{near}]" if ":" in near else near
    return os.environ.get("TENURE_URL") or f"http://{named}:{os.environ.get('TENURE_PORT', '8080')}"


def api_key() -> str | None:
    """TENURE_API_KEY, or the content of the file that TENURE_API_KEY_FILE names."""
    key, path = os.environ.get("TENURE_API_KEY"), os.environ.get("TENURE_API_KEY_FILE")
    if key and path:
        raise click.UsageError("set either TENURE_API_KEY or TENURE_API_KEY_FILE, not both")
    if path:
        try:
            key = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise click.UsageError(f"TENURE_API_KEY_FILE cannot be read: {type(fault).__name__}") from None
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable()):
        raise click.UsageError("the API key holds characters that no key has")
    return key or None


class Client:
    """A connection to the service. Every call ends the command with the right exit code if it is refused."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self.url = base_url().rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise click.UsageError("TENURE_URL must begin with http:// or https://")
        key = api_key()
        headers = {"accept": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)
        except httpx.InvalidURL:
            raise click.UsageError("TENURE_URL is not a URL") from None

    def get(self, path: str, **params: Any) -> Any:
        return self._call("GET", path, params={name: value for name, value in params.items() if value is not None})

    def post(self, path: str, body: Any) -> Any:
        """`body` is a value to be written as JSON, or bytes that are JSON and are sent as they are."""
        if isinstance(body, bytes):
            return self._call("POST", path, content=body, headers={"content-type": "application/json"})
        return self._call("POST", path, json=body)

    def put(self, path: str, body: bytes) -> Any:
        """`body` is JSON, sent byte for byte."""
        return self._call("PUT", path, content=body, headers={"content-type": "application/json"})

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def every(self, path: str, **params: Any) -> list[Any]:
        """All items of a list, page by page."""
        return list(self.each(path, **params))

    def each(self, path: str, **params: Any) -> Iterator[Any]:
        """The items of a list, each page as it is wanted."""
        cursor: str | None = None
        while True:
            page = self.get(path, limit=500, cursor=cursor, **params)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
        except UnicodeEncodeError:
            raise click.UsageError("an argument is not UTF-8") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as fault:
            raise CommandFailed(
                f"no answer from {self.url}: {type(fault).__name__}; is TENURE_URL right?", AWAY
            ) from None
        except httpx.HTTPError as fault:
            doubt = "" if method == "GET" else "; the command may have been carried out: look before you repeat it"
            raise CommandFailed(f"the answer of {self.url} was lost: {type(fault).__name__}{doubt}", AWAY) from None
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and body is not None:
            return body
        if isinstance(body, dict) and "code" in body:
            raise of_problem(body, answer.status_code)
        raise CommandFailed(f"{self.url} answered {answer.status_code} and does not seem to be Tenure", FAILED)
