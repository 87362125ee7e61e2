"""Requests for runs of a view: what is asked is what is read, and anything else is refused."""

from __future__ import annotations

import pytest

from shoal.agent.durable.ids import GroupId
from shoal.agent.peers.messages import PeerMessageError
from shoal.agent.views.run_format import RunName
from shoal.agent.views.upkeep.shipment import decode_piece_wanted, encode_piece_wanted
from shoal.format.batch import LogIndex

GROUP = GroupId(b"t" * 16, 4)
NAME = RunName(LogIndex(3), LogIndex(900), 17)


def test_a_request_is_read_as_it_was_written() -> None:
    """Group, run and position."""
    assert decode_piece_wanted(encode_piece_wanted(GROUP, NAME, 2**40)) == (GROUP, NAME, 2**40)


def test_other_bytes_are_refused() -> None:
    """Every other length, and a run that ends before it begins."""
    data = encode_piece_wanted(GROUP, NAME, 5)
    for wrong in (*(data[:length] for length in range(len(data))), data + b"\0"):
        with pytest.raises(PeerMessageError):
            decode_piece_wanted(wrong)
    with pytest.raises(PeerMessageError):
        decode_piece_wanted(encode_piece_wanted(GROUP, RunName(LogIndex(9), LogIndex(8), 1), 0))
