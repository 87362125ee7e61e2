"""How long to poll before sleeping: as long as that has been worth it lately, and never beyond its bound."""

import pytest

from shoal.agent.process.event_loop import WINDOW_NS_MAX, WINDOW_NS_MIN, IdlePoll


def test_nothing_is_expected_but_what_was_said_and_not_for_ever() -> None:
    """An answer that has not come after the longest window is not expected any more."""
    poll = IdlePoll()
    assert not poll.expects(0)
    poll.expect(1_000)
    assert poll.expects(1_000)
    assert poll.expects(1_000 + WINDOW_NS_MAX - 1)
    assert not poll.expects(1_000 + WINDOW_NS_MAX)


def test_the_window_grows_until_it_meets_what_comes() -> None:
    """A wait of 250 us: found asleep at first, and awake from the fourth on."""
    poll, windows = IdlePoll(), []
    for _ in range(5):
        windows.append(poll.window_ns)
        if poll.window_ns < 250_000:
            poll.waited(250_000)
    assert windows == [WINDOW_NS_MIN, 100_000, 200_000, WINDOW_NS_MAX, WINDOW_NS_MAX]


def test_a_slow_disk_is_slept_for() -> None:
    """Waits of 5 ms: after a few no time is lost on them, until short ones come again."""
    poll = IdlePoll()
    for _ in range(3):
        poll.waited(250_000)
    windows = []
    while poll.window_ns:
        windows.append(poll.window_ns)
        poll.waited(5_000_000)
    assert windows == [WINDOW_NS_MAX, 200_000, 100_000, WINDOW_NS_MIN]
    poll.waited(5_000_000)
    assert poll.window_ns == 0
    poll.waited(30_000)
    assert poll.window_ns == WINDOW_NS_MIN


@pytest.mark.parametrize("took_ns", [0, 1, WINDOW_NS_MIN, WINDOW_NS_MAX, WINDOW_NS_MAX + 1, 10**12])
def test_whatever_a_wait_took_the_window_stays_within_its_bounds(took_ns: int) -> None:
    """From every window that there is."""
    for first in range(6):
        poll = IdlePoll()
        for _ in range(first):
            poll.waited(WINDOW_NS_MAX)
        poll.waited(took_ns)
        assert poll.window_ns == 0 or WINDOW_NS_MIN <= poll.window_ns <= WINDOW_NS_MAX
