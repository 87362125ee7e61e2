"""LZW against vectors of Go's compress/lzw, and its bounds."""

import random

import pytest

from shoal.membership.wire.errors import WireError
from shoal.membership.wire.lzw import compress, decompress

VECTORS = [
    (b"", "000302"),
    (b"a", "00c30404"),
    (b"aaaaaaa", "00c3081c182620"),
    (b"hello hello hello", "00d19461c3e60d0881040d222c1810"),
]


@pytest.mark.parametrize(("plain", "coded"), VECTORS)
def test_vectors(plain: bytes, coded: str) -> None:
    """Both ways, byte for byte."""
    assert compress(plain).hex() == coded
    assert decompress(bytes.fromhex(coded), 1000) == plain


def test_captured_stream_ack() -> None:
    """A compressed ack that a real agent accepted (SeqNo 72, payload nil)."""
    coded = bytes.fromhex("0005082a35a54c1c276f909c8212260f9b3761c8000b08")
    plain = b"\x02\x82\xa5SeqNo\x48\xa7Payload\xc0"
    assert sorted(decompress(coded, 100)) == sorted(plain)
    assert compress(decompress(coded, 100)) == coded


@pytest.mark.parametrize("size", [1, 255, 256, 257, 511, 3836, 3837, 3838, 3839, 3840, 4095, 4096, 20_000])
@pytest.mark.parametrize("alphabet", [1, 2, 256])
def test_round_trip_over_width_and_table_limits(size: int, alphabet: int) -> None:
    """Every width from 9 to 12 bits and full tables, where an off-by-one would show."""
    rng = random.Random(size * alphabet)
    plain = bytes(rng.randrange(alphabet) for _ in range(size))
    assert decompress(compress(plain), size) == plain


def test_bomb_is_stopped_at_the_cap() -> None:
    """A few kilobytes that say a megabyte are refused as soon as the cap is passed."""
    bomb = compress(bytes(1_000_000))
    assert len(bomb) < 5000
    with pytest.raises(WireError) as caught:
        decompress(bomb, 65_536)
    assert caught.value.reason == "limit"


@pytest.mark.parametrize("coded", ["", "00", "0003", "00c304", "00fffff0"])
def test_bad_streams_raise_wire_error(coded: str) -> None:
    """No end mark, or a code not yet defined."""
    with pytest.raises(WireError):
        decompress(bytes.fromhex(coded), 1000)
