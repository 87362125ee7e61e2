"""The payloads of Serf's key queries: what is asked of a keyring, and what it answers.

Law of this file: values and their bytes, as wire/serf.py.
"""

from dataclasses import dataclass

from shoal.membership.wire.dialect import as_text, pack, unpack_struct
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.serf import SerfType

MAX_MESSAGE_BYTES = 1024
"""An error's text: a whole answer has at most so much."""

MAX_LISTED_KEYS = 64
"""Keys of one answer that we look at; a datagram holds some twenty."""


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """`keys` and `primary` are base64, and only in the answer to a listing. A listing that had to be cut says
    so in `message`, and is no failure."""

    ok: bool
    message: str = ""
    keys: tuple[str, ...] = ()
    primary: str = ""


def encode_key_request(key: bytes) -> bytes:
    """An empty key asks for the list."""
    return bytes((SerfType.KEY_REQUEST,)) + pack({"Key": key})


def decode_key_request(data: bytes) -> bytes:
    """The key meant. Raises WireError."""
    if data[:1] != bytes((SerfType.KEY_REQUEST,)):
        raise WireError("type", "not a key request")
    fields, _ = unpack_struct(data, 1)
    return fields.raw("Key")


def encode_key_answer(answer: KeyAnswer) -> bytes:
    """Keys in Go's sorted order."""
    body: dict[str, object] = {
        "Keys": list(answer.keys) or None,
        "Message": answer.message,
        "PrimaryKey": answer.primary,
        "Result": answer.ok,
    }
    return bytes((SerfType.KEY_RESPONSE,)) + pack(body)


def decode_key_answer(data: bytes) -> KeyAnswer:
    """Raises WireError."""
    if data[:1] != bytes((SerfType.KEY_RESPONSE,)):
        raise WireError("type", "not the answer to a key request")
    fields, _ = unpack_struct(data, 1)
    keys = fields.items("Keys")
    if len(keys) > MAX_LISTED_KEYS:
        raise WireError("limit", f"{len(keys)} keys in one answer")
    return KeyAnswer(
        ok=fields.flag("Result"),
        message=fields.text("Message", MAX_MESSAGE_BYTES),
        keys=tuple(as_text(key, "a key", 64) for key in keys),
        primary=fields.text("PrimaryKey", 64),
    )
