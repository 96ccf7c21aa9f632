"""JSON at the boundary: strict bodies, opaque values kept byte for byte, and the types that every model is made of.

    class EnqueueJob(Body):
        queue: Name
        payload: OpaqueJson                      # Python value: bytes, exactly as sent
        available_at: Moment | None = None       # Python value: microseconds

    job = parse(EnqueueJob, body, max_value_bytes=settings.max_payload_bytes)

A leaf: it knows nothing of HTTP, SQL or a primitive.
"""

from app.jsontext.parsing import parse, plan_of, refusal_of
from app.jsontext.soundness import check_value, escape
from app.jsontext.types import (
    Body,
    ClaimId,
    Commas,
    IdText,
    Key,
    Label,
    Moment,
    Name,
    Note,
    Opaque,
    OpaqueJson,
    Params,
    Read,
    Reason,
    Seconds,
    Token,
    wrong,
)

__all__ = [
    "Body",
    "ClaimId",
    "Commas",
    "IdText",
    "Key",
    "Label",
    "Moment",
    "Name",
    "Note",
    "Opaque",
    "OpaqueJson",
    "Params",
    "Read",
    "Reason",
    "Seconds",
    "Token",
    "check_value",
    "escape",
    "parse",
    "plan_of",
    "refusal_of",
    "wrong",
]
