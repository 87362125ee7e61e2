"""Places in all partitions of a topic as one text that fits a request line: a cursor.

Pure. Two forms: 0:17,1:30, which people write and read; and, where that would be long, `p` and base64url
(RFC 4648 section 5, without padding) of

    | width (1 byte, 1 to 8) | base (8 bytes) | of each partition from 0 on: offset - base + 1 (width bytes) |

big endian, 0 for a partition that is not named. 1,024 partitions whose offsets lie within 10^12 of each other
take 6,840 characters of the 8,190 that a request line or a header may have.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

from shoal.agent.http.core.parameters import Places, Query, invalid, is_number
from shoal.errors import ShoalError, shown

COMPACT_MARK = "p"
# A longer text is no longer read by anybody, and others of its kind might not fit a header.
TEXT_CHARACTERS_MAX = 2_048
# Room that a stream's cursor leaves above its greatest offset, so that it is rarely laid out anew.
GROWTH = 1 << 16
OFFSET_MAX = 2**63 - 1
_HEAD_BYTES = 9


def places(query: Query, name: str, partitions: int) -> Places | None:
    """The offsets by partition that a parameter names, of a topic with so many partitions, in their order;
    None when it is not there. ShoalError bad-request, or unknown-partition."""
    text = query.get(name)
    if text is None:
        return None
    found = _from_compact(name, text) if text.startswith(COMPACT_MARK) else _from_text(name, text)
    if found and max(found) >= partitions:
        raise ShoalError(
            "unknown-partition", f"{name}: the topic has partitions 0 to {partitions - 1}, not {max(found)}"
        )
    return found


def _from_text(name: str, text: str) -> Places:
    found: Places = {}
    for piece in text.split(","):
        partition, _, offset = piece.partition(":")
        if not (is_number(partition) and is_number(offset)):
            raise invalid(name, text, f"{shown(piece)} is not PARTITION:OFFSET; 0:17,1:30 is wanted")
        number = int(partition)
        if number in found:
            raise invalid(name, text, f"partition {number} is given twice")
        found[number] = int(offset)
    return dict(sorted(found.items()))


def _from_compact(name: str, text: str) -> Places:
    try:
        packed = text[1:].encode("ascii")
        data = urlsafe_b64decode(packed + b"=" * (-len(packed) % 4))
    except (ValueError, binascii.Error):
        raise _not_a_cursor(name, text) from None
    width = data[0] if data else 0
    body = data[_HEAD_BYTES:]
    if not 1 <= width <= 8 or not body or len(body) % width or encoded(data) != text:
        raise _not_a_cursor(name, text)
    base = int.from_bytes(data[1:_HEAD_BYTES])
    found = {}
    for partition, at in enumerate(range(0, len(body), width)):
        above = int.from_bytes(body[at : at + width])
        if above:
            found[partition] = base + above - 1
    if not found or max(found.values()) > OFFSET_MAX:
        raise _not_a_cursor(name, text)
    return found


def _not_a_cursor(name: str, text: str) -> ShoalError:
    return invalid(name, text, "0:17,1:30 is wanted, or a cursor as an answer gave it")


def encoded(data: bytes | bytearray) -> str:
    """The text of a compact cursor's bytes."""
    return COMPACT_MARK + urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def format_places(found: Mapping[int, int]) -> str:
    """These places as text, in the short form where the other would be long."""
    text = _text(found)
    return text if len(text) <= TEXT_CHARACTERS_MAX else encoded(_pack(found, growth=0))


def _text(found: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in found.items())


def _pack(found: Mapping[int, int], growth: int) -> bytearray:
    base = min(found.values())
    width = _bytes_of(max(found.values()) - base + 1 + growth)
    data = bytearray(bytes((width,)) + base.to_bytes(8))
    for partition in range(max(found) + 1):
        data += (found[partition] - base + 1 if partition in found else 0).to_bytes(width)
    return data


def _bytes_of(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


class MovingCursor:
    """The cursor behind each record of a stream: one step costs no walk over the partitions."""

    def __init__(self, at: Mapping[int, int]) -> None:
        self._places = dict(at)
        self._texts: dict[int, str] | None = None
        self._data = bytearray()
        self._lay_out()

    def _lay_out(self) -> None:
        if len(_text(self._places)) <= TEXT_CHARACTERS_MAX // 2:
            self._texts = {partition: f"{partition}:{offset}" for partition, offset in self._places.items()}
        else:
            self._texts, self._data = None, _pack(self._places, GROWTH)

    @property
    def places(self) -> Mapping[int, int]:
        """Where it stands."""
        return self._places

    def step(self, partition: int) -> str:
        """One record of this partition was passed: the cursor behind it."""
        self._places[partition] += 1
        if self._texts is not None:
            self._texts[partition] = f"{partition}:{self._places[partition]}"
            return ",".join(self._texts.values())
        width, base = self._data[0], int.from_bytes(self._data[1:_HEAD_BYTES])
        above = self._places[partition] - base + 1
        if _bytes_of(above) > width:
            self._lay_out()
        else:
            at = _HEAD_BYTES + partition * width
            self._data[at : at + width] = above.to_bytes(width)
        return encoded(self._data)
