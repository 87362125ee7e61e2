"""What requests of consumers are told when they fail."""

from __future__ import annotations

import pytest

from shoal.agent.delivery.queued import ConsumerRequest
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import LogIndex
from tests.agent.delivery.consumers import KEY


@pytest.mark.parametrize("code", ["not-leader", "no-leader"])
async def test_a_request_whose_acts_were_proposed_is_not_sent_elsewhere(code: ErrorCode) -> None:
    """Its leader was deposed before it had messages, too: the acts may be done."""
    for proposed, told in ((0, (code, True)), (7, ("leadership-lost", False))):
        request = ConsumerRequest(KEY, None, (), 0, 0, 1_000)
        request.proposed = LogIndex(proposed)
        request.fail(ShoalError(code, "somebody else leads", leader_url="http://a:1"), definite=True)
        with pytest.raises(ShoalError) as raised:
            await request.answer
        assert (raised.value.code, raised.value.definite) == told
        assert raised.value.extra == {"leader_url": "http://a:1"}
