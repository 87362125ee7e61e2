"""The payloads of Serf's key queries: what is asked of a keyring, and what it answers.

Law of this file: values and their bytes, as wire/serf.py.
"""

from typing import NamedTuple

from shoal.membership.wire.dialect import Fields, as_text, pack
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.serf import SerfType, fields_of
from shoal.membership.wire.structs import Part, Struct, flag, text

MAX_MESSAGE_BYTES = 1024
"""An error's text: a whole answer has at most so much."""

MAX_LISTED_KEYS = 64
"""Keys of one answer that we look at; a datagram holds some twenty."""


class KeyAnswer(NamedTuple):
    """`keys` and `primary` are base64, and only in the answer to a listing. A listing that had to be cut says
    so in `message`, and is no failure."""

    ok: bool
    message: str = ""
    keys: tuple[str, ...] = ()
    primary: str = ""


def _read_keys(fields: Fields) -> tuple[str, ...]:
    keys = fields.items("Keys")
    if len(keys) > MAX_LISTED_KEYS:
        raise WireError("limit", f"{len(keys)} keys in one answer")
    return tuple(as_text(key, "a key", 64) for key in keys)


_ANSWER = Struct(
    KeyAnswer,
    ok=flag("Result"),
    message=text("Message", MAX_MESSAGE_BYTES),
    keys=Part(_read_keys, lambda keys: {"Keys": list(keys) or None}),
    primary=text("PrimaryKey", 64),
)


def encode_key_request(key: bytes) -> bytes:
    """An empty key asks for the list."""
    return bytes((SerfType.KEY_REQUEST,)) + pack({"Key": key})


def decode_key_request(data: bytes) -> bytes:
    """The key meant. Raises WireError."""
    return fields_of(data, SerfType.KEY_REQUEST, "not a key request").raw("Key")


def encode_key_answer(answer: KeyAnswer) -> bytes:
    return bytes((SerfType.KEY_RESPONSE,)) + _ANSWER.encode(answer)


def decode_key_answer(data: bytes) -> KeyAnswer:
    """Raises WireError."""
    return _ANSWER.decode(fields_of(data, SerfType.KEY_RESPONSE, "not the answer to a key request"))
