"""The routing table: deltas, their pages, and which claim wins."""

import random
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.durable.ids import GroupId
from shoal.agent.routing.table import (
    Claim,
    Delta,
    OwnClaims,
    RouteError,
    RouteTable,
    decode_delta,
    decode_request,
    encode_delta,
    encode_request,
)

GROUP = GroupId(b"t" * 16, 0)


def claim(agent: str, role: str, term: int, leader: str | None, **changes: object) -> Claim:
    fields: dict[str, object] = {"group": GROUP, "configuration_index": 0, "voters": ("a", "b", "c")}
    return Claim(role=role, term=term, leader=leader, **(fields | changes))  # type: ignore[arg-type]


def table(**claims: Claim) -> RouteTable:
    routes = RouteTable()
    for agent, said in claims.items():
        own = OwnClaims(agent, "run")
        own.set(said)
        assert routes.apply(own.delta("", 0))
    return routes


def always(_: str) -> bool:
    return True


LEADERS = [
    ("one leader", {"a": ("leader", 3, "a"), "b": ("follower", 3, "a")}, "a", 3),
    ("the newer term wins", {"a": ("leader", 3, "a"), "b": ("leader", 4, "b")}, "b", 4),
    ("a follower of a newer term knows better", {"a": ("leader", 3, "a"), "c": ("follower", 4, "b")}, "b", 4),
    (
        "an election without result hides nobody",
        {"a": ("leader", 3, "a"), "c": ("follower", 4, None)},
        "a",
        3,
    ),
    (
        "who stepped down leads no more, whatever the dead have last said",
        {"a": ("follower", 3, None), "b": ("follower", 3, "a")},
        None,
        3,
    ),
    (
        "an older claim of the newly elected does not speak against it",
        {"a": ("follower", 2, "c"), "b": ("follower", 3, "a")},
        "a",
        3,
    ),
    ("nobody knows", {"a": ("follower", 3, None)}, None, 3),
]


@pytest.mark.parametrize(
    ("said", "leader", "term"), [row[1:] for row in LEADERS], ids=[row[0] for row in LEADERS]
)
def test_the_newest_claim_decides(
    said: dict[str, tuple[str, int, str | None]], leader: str | None, term: int
) -> None:
    """Ordered by term, whoever said it and whenever it arrived."""
    routes = table(**{agent: claim(agent, *words) for agent, words in said.items()})
    found = routes.leadership(GROUP, always)
    assert found is not None
    assert (found.leader, found.term) == (leader, term)


def test_within_a_term_the_newer_configuration_decides() -> None:
    """A follower that lags shows the old voters (safety 1)."""
    old = claim("b", "follower", 3, "a")
    new = claim("a", "leader", 3, "a", configuration_index=9, voters=("a", "d"))
    found = table(a=new, b=old).leadership(GROUP, always)
    assert found is not None
    assert found.voters == ("a", "d")


@pytest.mark.parametrize("leader", ["a", None])
def test_of_followers_claims_the_newer_configuration_decides_too(leader: str | None) -> None:
    """The leader itself was not heard, or there is none: not who has more of the log, but who knows the newer
    configuration (safety 1)."""
    old = claim("b", "follower", 3, leader, high_watermark=99)
    new = claim("c", "follower", 3, leader, configuration_index=9, voters=("a", "c"))
    for routes in (table(b=old, c=new), table(c=new, b=old)):
        found = routes.leadership(GROUP, always)
        assert found is not None
        assert (found.leader, found.voters) == (leader, ("a", "c"))


def test_a_dead_leader_is_no_leader() -> None:
    """Clients must wait for the next one rather than be sent to a closed door."""
    routes = table(a=claim("a", "leader", 3, "a"), b=claim("b", "follower", 3, "a"))
    found = routes.leadership(GROUP, lambda agent: agent != "a")
    assert found is not None
    assert found.leader is None
    assert RouteTable().leadership(GROUP, always) is None


def test_offsets_change_no_version() -> None:
    """Long polls on placement would otherwise wake with every record."""
    own, routes = OwnClaims("a", "run"), RouteTable()
    assert own.set(claim("a", "leader", 3, "a"))
    routes.apply(own.delta("", 0))
    placement, version = own.placement_version, routes.version
    assert not own.set(claim("a", "leader", 3, "a", high_watermark=7, log_end_offset=9))
    assert not own.set(claim("a", "leader", 3, "a", high_watermark=7, log_end_offset=9))
    routes.apply(own.delta(*routes.known("a")))
    assert (own.placement_version, routes.version) == (placement, version)
    found = routes.leadership(GROUP, always)
    assert found is not None
    assert found.high_watermark == 7


def test_a_delta_that_does_not_follow_is_refused() -> None:
    """The receiver then asks from what it knows."""
    own, routes = OwnClaims("a", "run"), RouteTable()
    own.set(claim("a", "follower", 1, None))
    number = own.counter
    own.set(claim("a", "leader", 2, "a"))
    assert not routes.apply(own.delta(own.run, number))
    assert routes.apply(own.delta(*routes.known("a")))
    assert routes.known("a") == (own.run, own.counter)


def test_a_new_run_replaces_everything() -> None:
    """After a restart the agent holds what it says now, and nothing of what it said before."""
    routes = table(a=claim("a", "leader", 3, "a"))
    reborn = OwnClaims("a", "second")
    other = GroupId(b"u" * 16, 1)
    reborn.set(claim("a", "follower", 4, "b", group=other))
    assert routes.apply(reborn.delta(*routes.known("a")))
    assert [said.group for said in routes.claims_of("a")] == [other]
    assert routes.claims_about(GROUP) == {}


def test_forgetting_a_member() -> None:
    """Its claims no longer count, and the version says so."""
    routes = table(a=claim("a", "leader", 3, "a"))
    version = routes.version
    routes.forget("a")
    routes.forget("a")
    assert routes.version == version + 1
    assert routes.leadership(GROUP, always) is None


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_pulled_pages_equal_what_is_held(seed: int, limit: int) -> None:
    """Any history of changes and removals, pulled at any moments in pages of any size, through bytes."""
    rng = random.Random(seed)
    own, routes = OwnClaims("a", "run"), RouteTable()
    own.MAX_REMOVED = 3
    for _ in range(40):
        group = GroupId(bytes([rng.randrange(8)]) * 16, 0)
        if rng.random() < 0.3:
            own.remove(group)
        else:
            own.set(claim("a", "leader", rng.randrange(4), "a", group=group, log_end_offset=rng.randrange(3)))
        if rng.random() < 0.2:
            pull(own, routes, limit)
    pull(own, routes, limit)
    assert routes.claims_of("a") == sorted(own.held(), key=lambda said: said.group)
    assert routes.known("a") == (own.run, own.counter)
    if own.counter:
        assert routes.placement_known("a") == (own.run, own.placement_version)


def pull(own: OwnClaims, routes: RouteTable, limit: int) -> None:
    for _ in range(100):
        run, after = decode_request(encode_request(*routes.known("a")))
        delta = decode_delta(encode_delta(own.delta(run, after, limit)))
        assert routes.apply(delta)
        if not delta.more:
            return
    raise AssertionError("the pages never end")


@given(st.binary(max_size=80))
def test_decoders_raise_their_one_error(data: bytes) -> None:
    """Whatever the bytes."""
    for decode in (decode_delta, decode_request):
        with pytest.raises(RouteError):
            decode(data)


@pytest.mark.parametrize(
    "changes",
    [
        '[["00",0]]',
        "[[1,2]]",
        '[["' + "00" * 16 + '",-1]]',
        '[["' + "00" * 16 + '",0,9,0,0,null,[],[],0,0,0,0]]',
        "7",
    ],
)
def test_a_delta_with_a_bad_change_is_refused_whole(changes: str) -> None:
    """Half a delta would look like a smaller placement."""
    text = f'{{"agent":"a","run":"r","after":0,"upto":1,"placement":1,"more":false,"changes":{changes}}}'
    with pytest.raises(RouteError):
        decode_delta(text.encode())


def test_a_delta_survives_its_bytes() -> None:
    """Every field, and a removal."""
    said = claim("a", "learner", 5, None, learners=("d",), log_start_offset=1, high_watermark=2, size_bytes=3)
    delta = Delta("a", "run", 4, 6, 6, True, ((GROUP, said), (GroupId(b"u" * 16, 7), None)))
    assert decode_delta(encode_delta(delta)) == delta


def test_placement_is_everything_but_offsets_and_size() -> None:
    """Whatever else is another is told at once."""
    one = claim("a", "leader", 3, "a")
    other = Claim(GroupId(b"u" * 16, 1), "follower", 4, 1, "b", ("b",), ("d",), 1, 2, 3, 4)
    information = {"log_start_offset", "high_watermark", "log_end_offset", "size_bytes"}
    for field in fields(Claim):
        changed = replace(one, **{field.name: getattr(other, field.name)})
        assert changed != one
        assert one.same_placement(changed) == (field.name in information), field.name
    assert not one.same_placement(None)
