"""What stands around every packet and stream of this pool: its label, and the seal of its keys.

Law of this file: it wraps what is sent and unwraps what came, or says with one error why it is not for us.
It does not know what is inside. Chance comes as `random_bytes`, the keyring of the moment as `keyring`.

memberlist's rules: the label must be ours, a missing one included. With a keyring everything is sealed
and plain text refused; the two switches relax that while a pool changes over.
"""

from collections.abc import Callable

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import Type
from shoal.membership.wire.sealing import (
    NONCE_BYTES,
    OVERHEAD_BYTES,
    STREAM_HEADER_BYTES,
    label_header,
    open_blob,
    seal,
    split_label,
)

NOT_CONFIGURED = "Remote state is encrypted and encryption is not configured"
NOT_ENCRYPTED = "Encryption is configured but remote state is not encrypted"


class Envelope:
    """The wrapping of one node. An empty label is none; without a keyring nothing is sealed."""

    def __init__(
        self,
        *,
        label: str = "",
        keyring: Callable[[], Keyring | None] = lambda: None,
        verify_incoming: bool = True,
        verify_outgoing: bool = True,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.label = label.encode()
        self._header = label_header(self.label)
        self._keyring = keyring
        self._verify_incoming = verify_incoming
        self._verify_outgoing = verify_outgoing
        self._random_bytes = random_bytes

    def __repr__(self) -> str:
        return f"<Envelope label={self.label!r} {self._keyring()!r}>"

    # Packets

    def wrap_packet(self, data: bytes) -> bytes:
        """Seal and label one encoded packet."""
        keyring = self._keyring()
        if keyring is not None and self._verify_outgoing:
            data = seal(data, keyring.primary, self._random_bytes(NONCE_BYTES), self.label)
        return self._header + data

    def unwrap_packet(self, data: bytes) -> bytes:
        """The encoded packet. Raises WireError: "label" and "key" say that the sender is not one of us."""
        label, data = split_label(data)
        self.check_label(label)
        keyring = self._keyring()
        if keyring is None:
            return data  # a sealed one is no message that could be decoded: its first byte is 0 or 1
        try:
            return open_blob(data, keyring, self.label)
        except WireError as fault:
            if fault.reason == "key" and not self._verify_incoming:
                return data
            raise

    # Streams

    def wrap_stream(self, data: bytes, *, opens: bool) -> bytes:
        """Seal one encoded stream message; the side that opens the connection puts the label before it."""
        keyring = self._keyring()
        if keyring is not None and self._verify_outgoing:
            size = OVERHEAD_BYTES + len(data)
            header = bytes((Type.ENCRYPT,)) + size.to_bytes(STREAM_HEADER_BYTES - 1, "big")
            data = header + seal(data, keyring.primary, self._random_bytes(NONCE_BYTES), header + self.label)
        return self._header + data if opens else data

    def check_label(self, label: bytes) -> None:
        """Raises WireError("label") for another one than ours."""
        if label != self.label:
            raise WireError("label", f"the label {label!r} is not ours")

    def check_plain(self) -> None:
        """A stream begins unsealed. Raises WireError("key") when it must not."""
        if self._keyring() is not None and self._verify_incoming:
            raise WireError("key", NOT_ENCRYPTED)

    def check_sealed(self) -> None:
        """A stream begins sealed. Raises WireError("key") when nobody here could open it: its bytes need not
        even be read."""
        if self._keyring() is None:
            raise WireError("key", NOT_CONFIGURED)

    def open_stream(self, header: bytes, blob: bytes) -> bytes:
        """The content of a sealed stream after its header."""
        keyring = self._keyring()
        if keyring is None:
            raise WireError("key", NOT_CONFIGURED)
        return open_blob(blob, keyring, header + self.label)
