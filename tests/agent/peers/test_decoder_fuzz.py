"""Every decoder of stored bytes accepts or raises its one error, whatever the bytes."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.decoder_fuzz import Target, fuzz, targets

TARGETS = targets()
MUTATIONS = 800


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_mutations_of_good_bytes(target: Target) -> None:
    """Flips, cuts, insertions, extremes and splices of what the encoder wrote, with checksums made good
    again."""
    accepted = fuzz(target, 1, MUTATIONS)
    assert accepted < MUTATIONS or not target.errors, "no mutation was hostile"


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_any_bytes(target: Target, data: bytes) -> None:
    """Bytes that nobody wrote, shrunk to the shortest that fail; with a checksum that holds too."""
    healed = bytearray(data)
    if target.heal is not None:
        target.heal(healed)
    for hostile in (data, bytes(healed)):
        with contextlib.suppress(*target.errors):
            target.decode(hostile)
