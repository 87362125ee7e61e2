"""Gossip keys: one to seal with, several to open with.

Law of this file: an immutable value and its rules, which are memberlist's. Where keys come from, where
they are kept and when a pool changes them is decided elsewhere. A key never appears in an error, a log or
a repr(): people and programs name it by its fingerprint.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from typing import Self

KEY_BYTES = (16, 24, 32)
"""AES-128, AES-192, AES-256."""

MAX_KEYS = 16
"""Keys of one ring. A rotation needs two; each more is one more attempt at every packet that
none of them opens."""

FINGERPRINT_CHARACTERS = 16
"""64 bits of SHA-256: enough to tell the keys of a pool apart, useless for finding the key."""

MAX_KEYRING_BYTES = 4096
"""A keyring file: MAX_KEYS keys in base64 take a quarter of it."""


class KeyringError(ValueError):
    """A key or a change of a keyring that cannot be. The text is Serf's where Serf has one."""


class Keyring:
    """Keys without duplicates; the first is the primary one, which seals. All of them open."""

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = tuple(dict.fromkeys(check_key(key) for key in keys))
        if not self.keys:
            raise KeyringError("a keyring needs at least one key")
        if len(self.keys) > MAX_KEYS:
            raise KeyringError(f"a keyring holds at most {MAX_KEYS} keys")

    def __repr__(self) -> str:
        return f"<Keyring {' '.join(fingerprint(key) for key in self.keys)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyring) and self.keys == other.keys

    def __hash__(self) -> int:
        return hash(self.keys)

    @property
    def primary(self) -> bytes:
        return self.keys[0]

    def install(self, key: bytes) -> Self:
        """Accept this key from now on. One that is there already changes nothing."""
        return type(self)((*self.keys, key))

    def use(self, key: bytes) -> Self:
        """Seal with this key, which must have been installed."""
        if key not in self.keys:
            raise KeyringError("Requested key is not in the keyring")
        return type(self)((key, *self.keys))

    def remove(self, key: bytes) -> Self:
        """Accept this key no more. One that is not there changes nothing, as in memberlist."""
        if key == self.primary:
            raise KeyringError("Removing the primary key is not allowed")
        return type(self)(held for held in self.keys if held != key)

    def to_json(self) -> str:
        """Serf's keyring file: a list in base64, the primary key first."""
        return json.dumps([key_text(key) for key in self.keys], indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises KeyringError for anything but such a list."""
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise KeyringError("a keyring is a JSON list of keys in base64") from error
        if not isinstance(listed, list) or not all(isinstance(key, str) for key in listed):
            raise KeyringError("a keyring is a JSON list of keys in base64")
        return cls(parse_key(key) for key in listed)


def check_key(key: bytes) -> bytes:
    """The key itself. Raises KeyringError for a length that AES has not."""
    if len(key) not in KEY_BYTES:
        raise KeyringError("key size must be 16, 24 or 32 bytes")
    return key


def parse_key(text: str) -> bytes:
    """A key from base64. Raises KeyringError, which never repeats the text."""
    try:
        return check_key(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError) as error:
        raise KeyringError(
            "a gossip key is 16, 24 or 32 bytes in base64, as `shoal keygen` prints one"
        ) from error


def key_text(key: bytes) -> str:
    """A key in base64, as Serf writes it."""
    return base64.b64encode(key).decode()


def fingerprint(key: bytes) -> str:
    """What a key is called where it must not be shown."""
    return hashlib.sha256(key).hexdigest()[:FINGERPRINT_CHARACTERS]
