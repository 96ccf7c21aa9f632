"""CloudEvents 1.0 over HTTP, in binary mode (attributes are headers) or structured mode (all is one JSON document).

Own encoder: the data are bytes that must go out as they came in, and the SDK parses and writes them anew. Tests read what
is written here by the SDK.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.clock import to_text
from app.outgoing.headers import header_text

Mode = Literal["binary", "structured"]
_EXTENSION = re.compile(r"[a-z0-9]{1,20}", re.ASCII)
_RESERVED = frozenset(
    {"data", "data_base64", "datacontenttype", "dataschema", "id", "source", "specversion", "subject", "time", "type"}
)
_JSON = "application/json"
_INT32 = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `data` is JSON, sent byte for byte; `time` is in microseconds UTC; `extensions` have lowercase names.

    Raises ValueError for what no receiver could read: an empty id, source or type, a name that is no attribute's.
    """

    id: str
    source: str
    type: str
    time: int
    data: bytes = field(repr=False)
    subject: str | None = None
    extensions: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.id and self.source and self.type):
            raise ValueError("an event needs an id, a source and a type")
        for name in self.extensions:
            if not _EXTENSION.fullmatch(name) or name in _RESERVED:
                raise ValueError("the name of an extension must be 1 to 20 of a-z and 0-9, and not an attribute's own")

    def attributes(self) -> dict[str, str | int]:
        """All but the data and their type, in the order in which they are written. What is empty is left out."""
        named: dict[str, str | int | None] = {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "time": to_text(self.time),
            "subject": self.subject,
            **self.extensions,
        }
        return {name: value for name, value in named.items() if value is not None and value != ""}


def encode(event: Event, mode: Mode) -> tuple[dict[str, str], bytes]:
    """The headers and the body of the request. Raises UnicodeEncodeError (a ValueError) for a lone surrogate."""
    return _binary(event) if mode == "binary" else _structured(event)


def _binary(event: Event) -> tuple[dict[str, str], bytes]:
    attributes = {f"ce-{name}": header_text(str(value)) for name, value in event.attributes().items()}
    return {"content-type": _JSON, **attributes}, event.data


def _structured(event: Event) -> tuple[dict[str, str], bytes]:
    named = {**event.attributes(), "datacontenttype": _JSON}
    # an Integer of CloudEvents has 32 bits; a larger one is written as the text that it also is in binary mode
    plain = {name: value if isinstance(value, str) or value in _INT32 else str(value) for name, value in named.items()}
    head = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    return {"content-type": "application/cloudevents+json"}, head[:-1] + b',"data":' + event.data + b"}"
