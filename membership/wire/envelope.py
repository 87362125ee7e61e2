"""What stands around every packet and stream of this pool: its label, and the seal of its keys.

Law of this file: it wraps what is sent and unwraps what came, or says with one error why it is not for us.
It does not know what is inside. Chance comes as `random_bytes`, the keyring of the moment as `keyring`.

memberlist's rules: the label must be ours, a missing one included. With a keyring everything is sealed
and plain text refused; the two switches relax that while a pool changes over. We seal in version 1;
whoever speaks in version 0 is answered in version 0 (all peers that we can have read both, so this is
for strangers such as a tool of old).
"""

from collections import OrderedDict
from collections.abc import Callable

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import Endpoint, Type
from shoal.membership.wire.sealing import (
    NONCE_BYTES,
    PADDED_VERSION,
    PLAIN_VERSION,
    STREAM_HEADER_BYTES,
    Opened,
    label_header,
    open_blob,
    seal,
    sealed_bytes,
    split_label,
)

MAX_PADDED_PEERS = 64
"""Peers remembered as speaking version 0; the longest silent one is forgotten, and spoken to in version 1."""

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
        self._padded: OrderedDict[Endpoint, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Envelope label={self.label!r} {self._keyring()!r}>"

    # Packets

    def wrap_packet(self, data: bytes, receiver: Endpoint) -> bytes:
        """Seal and label one encoded packet."""
        keyring = self._keyring()
        if keyring is not None and self._verify_outgoing:
            version = PADDED_VERSION if receiver in self._padded else PLAIN_VERSION
            data = seal(data, keyring.primary, self._random_bytes(NONCE_BYTES), self.label, version)
        return self._header + data

    def unwrap_packet(self, data: bytes, sender: Endpoint) -> bytes:
        """The encoded packet. Raises WireError: "label" and "key" say that the sender is not one of us."""
        label, data = split_label(data)
        self.check_label(label)
        keyring = self._keyring()
        if keyring is None:
            return data  # a sealed one is no message that could be decoded: its first byte is 0 or 1
        try:
            opened = open_blob(data, keyring, self.label)
        except WireError as fault:
            if fault.reason == "key" and not self._verify_incoming:
                return data
            raise
        self._remember(sender, opened.version)
        return opened.content

    def _remember(self, sender: Endpoint, version: int) -> None:
        self._padded.pop(sender, None)
        if version == PADDED_VERSION:
            self._padded[sender] = None
            if len(self._padded) > MAX_PADDED_PEERS:
                self._padded.popitem(last=False)

    # Streams

    def wrap_stream(self, data: bytes, *, opens: bool, version: int = PLAIN_VERSION) -> bytes:
        """Seal one encoded stream message; the side that opens the connection puts the label before it."""
        keyring = self._keyring()
        if keyring is not None and self._verify_outgoing:
            size = sealed_bytes(len(data), version)
            header = bytes((Type.ENCRYPT,)) + size.to_bytes(STREAM_HEADER_BYTES - 1, "big")
            nonce = self._random_bytes(NONCE_BYTES)
            data = header + seal(data, keyring.primary, nonce, header + self.label, version)
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

    def open_stream(self, header: bytes, blob: bytes) -> Opened:
        """The content of a sealed stream after its header."""
        keyring = self._keyring()
        if keyring is None:
            raise WireError("key", NOT_CONFIGURED)
        return open_blob(blob, keyring, header + self.label)
