"""Tokens: random secrets that clients show, of which the cluster keeps a hash.

Law of this file: pure. Random bytes are arguments. A token is `shoal_ID_SECRET_CHECK`: ID names it in lists
and logs, SECRET has 256 random bits, CHECK is a CRC of all before it. Scanners of secrets know a token by
this form alone, and a typing error is told without a look into the state. SHA-256 of the whole is kept,
without salt: 256 random bits cannot be guessed. No repr, error or log shows more of a token than its id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from typing import Final

TOKEN_ID_BYTES: Final = 5
SECRET_BYTES: Final = 32
HASH_BYTES: Final = 32
TOKEN_ID: Final = re.compile(r"[a-z2-7]{8}")
TOKEN_PATTERN: Final = r"shoal_[a-z2-7]{8}_[a-z2-7]{52}_[a-z2-7]{7}"  # noqa: S105 -- the form of tokens
"""For scanners of secrets."""
TOKEN_CHARACTERS: Final = 75
HASH_TEXT: Final = re.compile(r"[0-9a-f]{64}")
_TOKEN: Final = re.compile(TOKEN_PATTERN)
_BEARER: Final = "bearer "


class TokenError(ValueError):
    """A text that is no token. Its words repeat nothing of it."""


class Token:
    """A token in clear: in memory for one request, or for the answer that tells it for the only time."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Of a text that is known to be well formed: see make_token() and parse_token()."""
        self._text = text

    def __repr__(self) -> str:
        return f"Token({self.id})"

    @property
    def id(self) -> str:
        """Its name, which is no secret."""
        return self._text[6:14]

    def reveal(self) -> str:
        """The secret itself."""
        return self._text

    def hash(self) -> bytes:
        """The 32 bytes that the cluster keeps."""
        return hashlib.sha256(self._text.encode()).digest()


def make_token(token_id: bytes, secret: bytes) -> Token:
    """`token_id`, `secret`: TOKEN_ID_BYTES and SECRET_BYTES of a source of secrets."""
    assert len(token_id) == TOKEN_ID_BYTES
    assert len(secret) == SECRET_BYTES
    body = f"shoal_{_base32(token_id)}_{_base32(secret)}"
    return Token(f"{body}_{_check(body)}")


def parse_token(text: str) -> Token:
    """Raises TokenError, and nothing else."""
    if _TOKEN.fullmatch(text) is None:
        raise TokenError("this is no token: one has 75 characters, and begins with shoal_")
    body, _, check = text.rpartition("_")
    if check != _check(body):
        raise TokenError("a character of the token is wrong, or missing: copy it again")
    return Token(text)


def token_of_header(authorization: str) -> Token:
    """The token in the value of a header `Authorization`. Raises TokenError, and nothing else."""
    return parse_token(bearer_of_header(authorization))


def bearer_of_header(authorization: str) -> str:
    """The credential in it, unread. Raises TokenError, and nothing else."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise TokenError("the header Authorization has to be `Bearer TOKEN`, once")
    return authorization[len(_BEARER) :]


def hash_from_text(text: str) -> bytes:
    """A hash as configurations have it, 64 hex digits. Raises TokenError, and nothing else."""
    if HASH_TEXT.fullmatch(text) is None:
        raise TokenError("the hash of a token is 64 hex digits: `shoal secure init` prints one")
    return bytes.fromhex(text)


def same_hash(one: bytes, other: bytes) -> bool:
    """In a time that does not tell how much of them agrees."""
    return hmac.compare_digest(one, other)


def _check(body: str) -> str:
    return _base32(zlib.crc32(body.encode()).to_bytes(4, "big"))


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()
