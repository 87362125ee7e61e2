"""The one error of every gossip decoder.

Law of this file: a decoder of this package returns a value or raises WireError; nothing
else escapes it, whatever the bytes.
"""


class WireError(ValueError):
    """Bytes that are not a message of this protocol.

    `reason` is one of short, limit, format, checksum, type, unsupported, label, key: fit for a metric's
    label. The last two say that the sender is none of us; they are about no byte of a message.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ShortError(WireError):
    """The bytes end inside a message. `needed` is a lower bound for the length at which
    decoding can succeed."""

    def __init__(self, needed: int) -> None:
        super().__init__("short", f"at least {needed} bytes are needed")
        self.needed = needed
