"""AES-GCM around packets and streams, as memberlist seals them, and the label before them.

Law of this file: bytes to bytes, the only file that knows `cryptography`. A nonce is an argument: chance is
the caller's. Open means that the sender has one of the keys and that the label is the one it meant.

    blob        version, nonce (12), ciphertext, tag (16)
    version     1: as it is; 0: padded (PKCS #7) to 16 bytes before sealing, as memberlist's protocol 1 did
    label       f4, length, bytes: before everything else, and part of what the seal covers

Serf agents have no labels; sealed and plain, in both directions, they were tried with memberlist 0.5.1.
"""

from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import MAX_KEYS, Keyring
from shoal.membership.wire.messages import Type

NONCE_BYTES = 12
TAG_BYTES = 16
BLOCK_BYTES = 16

PLAIN_VERSION = 1
"""What is sent: no padding."""
PADDED_VERSION = 0
"""Is opened, never sent: a peer that speaks protocol 2, as all of a pool do, reads version 1."""

OVERHEAD_BYTES = 1 + NONCE_BYTES + TAG_BYTES
"""Version, nonce and tag; version 0 has 1 to 16 bytes of padding beside."""

MAX_LABEL_BYTES = 255
"""One byte says how long a label is."""

STREAM_HEADER_BYTES = 5
"""Before a sealed stream: 0a and the blob's length, 32 bits big-endian. The seal covers them."""


@lru_cache(maxsize=2 * MAX_KEYS)
def _cipher(key: bytes) -> AESGCM:
    """Expanding a key costs more than sealing a packet with it."""
    return AESGCM(key)


def seal(content: bytes, key: bytes, nonce: bytes, associated: bytes) -> bytes:
    """One blob. `associated` is covered by the tag but not sent."""
    assert len(nonce) == NONCE_BYTES
    return bytes((PLAIN_VERSION,)) + nonce + _cipher(key).encrypt(nonce, content, associated)


def open_blob(blob: bytes, keyring: Keyring, associated: bytes) -> bytes:
    """Try every key, the primary first. Raises WireError("key") when none opens it."""
    if not blob or blob[0] not in (PLAIN_VERSION, PADDED_VERSION):
        raise WireError("key", "not sealed, or in a version nobody knows")
    padded = blob[0] == PADDED_VERSION
    if len(blob) < OVERHEAD_BYTES + (BLOCK_BYTES if padded else 0):
        raise WireError("key", f"{len(blob)} bytes are too few to be sealed")
    nonce, ciphertext = blob[1 : 1 + NONCE_BYTES], blob[1 + NONCE_BYTES :]
    for key in keyring.keys:
        try:
            content = _cipher(key).decrypt(nonce, ciphertext, associated)
        except InvalidTag:
            continue
        return _unpadded(content) if padded else content
    raise WireError("key", "sealed with a key that is not in the keyring")


def _unpadded(content: bytes) -> bytes:
    padding_bytes = content[-1] if content else 0
    if not 1 <= padding_bytes <= min(BLOCK_BYTES, len(content)):
        raise WireError("format", "the padding inside a sealed message is wrong")
    return content[:-padding_bytes]


def label_header(label: bytes) -> bytes:
    """Nothing for an empty label."""
    if not label:
        return b""
    assert len(label) <= MAX_LABEL_BYTES
    return bytes((Type.LABEL, len(label))) + label


def split_label(data: bytes) -> tuple[bytes, bytes]:
    """The label of a packet, empty when it has none, and the rest. Raises WireError."""
    if not data or data[0] != Type.LABEL:
        return b"", data
    if len(data) < 2 or not data[1] or len(data) < 2 + data[1]:
        raise WireError("format", "a label that is empty or cut off")
    return data[2 : 2 + data[1]], data[2 + data[1] :]
