"""Failed logins under virtual time: how many are told why, of which addresses, and what nobody can reset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.security.failed_logins import LOGIN_NS, LOGINS_AT_ONCE, FailedLogins, key_of

MINUTE_NS = LOGINS_AT_ONCE * LOGIN_NS
HOME = "192.0.2.1"


def told(logins: FailedLogins, address: str, times: int, now_ns: int = 1) -> int:
    """How many of so many failures may be told why."""
    return sum(logins.failed(address, now_ns) == 0 for _ in range(times))


def test_ten_at_once_then_ten_a_minute() -> None:
    """A refusal says when the next may be told, and costs nothing."""
    logins = FailedLogins()
    assert told(logins, HOME, 100) == 10
    assert logins.failed(HOME, 1) == LOGIN_NS
    assert logins.failed(HOME, LOGIN_NS) == 1
    assert logins.failed(HOME, LOGIN_NS + 1) == 0
    assert logins.failed(HOME, LOGIN_NS + 1) > 0
    assert told(logins, HOME, 100, LOGIN_NS + 1 + MINUTE_NS) == 10


@pytest.mark.parametrize(("one", "other"), [
    ("2001:db8::1", "2001:db8:0:0:ffff::2"), ("192.0.2.1", "::ffff:192.0.2.1"),
    ("fe80::1%eth0", "fe80::2%eth1"),
])  # fmt: skip
def test_addresses_of_one_host_count_together(one: str, other: str) -> None:
    """An IPv6 network of 64 bits is one host's; IPv4 is the same in IPv6."""
    logins = FailedLogins()
    assert told(logins, one, 6) == 6
    assert told(logins, other, 6) == 4


def test_others_are_not_concerned() -> None:
    """Of another address, or of another network."""
    logins = FailedLogins()
    assert told(logins, HOME, 20) == 10
    for address in ("192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"):
        assert told(logins, address, 20) == 10


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "", "/run/shoal", "x"]
)
def test_the_host_itself_has_no_limit(address: str) -> None:
    """Nor has what is no address."""
    logins = FailedLogins()
    assert key_of(address) is None
    assert told(logins, address, 100) == 100
    assert len(logins) == 0


def test_many_addresses_do_not_reset_one() -> None:
    """One that has used up its failures keeps them, while as many others as there are come and go. Those that
    find no room count as one."""
    logins = FailedLogins(100)
    assert told(logins, HOME, 20) == 10
    of_strangers = sum(told(logins, f"10.0.{n // 250}.{n % 250}", 2) for n in range(1_000))
    logins.check_invariants()
    assert of_strangers == 99 * 2 + 10
    assert told(logins, HOME, 20) == 0
    assert told(logins, HOME, 20, MINUTE_NS + 1) == 10
    assert told(logins, "10.9.9.9", 20, MINUTE_NS + 1) == 10
    assert len(logins) <= 2


@given(st.lists(st.tuples(st.integers(0, 2 * LOGIN_NS), st.integers(0, 9)), max_size=200))
def test_no_address_has_more_than_its_rate(failures: list[tuple[int, int]]) -> None:
    """At every moment; the table is bounded, and what has to be waited for suffices."""
    logins, now_ns, counts = FailedLogins(4), 1, dict.fromkeys(range(10), 0)
    for pause_ns, number in failures:
        now_ns += pause_ns
        wait_ns = logins.failed(f"10.0.0.{number}", now_ns)
        logins.check_invariants()
        counts[number] += wait_ns == 0
        assert (counts[number] - LOGINS_AT_ONCE) * LOGIN_NS <= now_ns
        assert 0 <= wait_ns <= LOGIN_NS
