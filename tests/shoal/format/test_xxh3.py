"""The hash in plain Python gives what the package gives, or a key would have two partitions."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shoal.format.xxh3 import xxh3_64_intdigest


@pytest.mark.parametrize(
    "length", [*range(260), 511, 512, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 5000]
)
def test_every_length_has_its_own_path(length: int) -> None:
    """0, 1 to 3, 4 to 8, 9 to 16, up to 128, up to 240, stripes, blocks: bytes of all values in each."""
    for factor in (1, 7, 251):
        data = bytes(number * factor % 256 for number in range(length))
        assert xxh3_64_intdigest(data) == xxhash.xxh3_64_intdigest(data)


@given(st.binary(max_size=3_000))
def test_any_bytes(data: bytes) -> None:
    """Whatever a key is."""
    assert xxh3_64_intdigest(data) == xxhash.xxh3_64_intdigest(data)
