"""The SWIM core in a pool that somebody fills with nodes that do not exist."""

from shoal.membership.swim.ready import ChangeKind
from shoal.membership.wire.messages import VSN, Ack, Alive, Dead, NodeState, Ping, State
from tests.membership.swim.test_core import META, STRANGER, Script, at


def flooded(**knobs: object) -> Script:
    """Two nodes that answer, n3 and n4, and sixty that do not exist."""
    script = Script(**knobs)
    script.know(3, 4)
    script.run(10_000)
    script.silent |= {f"n{number}" for number in range(100, 160)}
    script.know(*range(100, 160))
    return script


def test_a_flood_of_invented_nodes_does_not_keep_from_probing_real_ones() -> None:
    """Every second probe is for those that answered before: each has its turn as in a pool of twice as many,
    not of thirty times as many."""
    script = flooded(max_members=100)
    begun_ms = script.now_ms
    script.sent.clear()
    script.run(begun_ms + 24_000)
    probed = [message.node for _, message in script.of(Ping)]
    assert probed.count("n3") >= 2
    assert probed.count("n4") >= 2
    others = [name for name in probed if name not in ("n3", "n4")]
    assert len(others) >= len(probed) // 2 - 1, "the others have theirs, too"
    script.silent.add("n3")
    failed_ms = script.now_ms
    while script.state("n3")[0] != State.SUSPECT:
        script.run(script.now_ms + 500)
    assert script.now_ms <= failed_ms + 30_000


def test_a_flood_of_invented_nodes_does_not_take_the_news_from_real_ones() -> None:
    """Two of three that are told are of those that answered before."""
    script = flooded()
    script.sent.clear()
    script.core.set_meta(b"\xff\x81\xa1a\xa1b")
    script.run(script.now_ms + 3_000)
    told = [
        endpoint for endpoint, message in script.sent if isinstance(message, Alive) and message.node == "me"
    ]
    assert {at(3), at(4)} <= set(told)


def test_invented_nodes_that_are_gone_make_room() -> None:
    """A full table refuses the newest that does not answer, until those who never did are found out; those
    who did answer stay, dead or alive."""
    script = flooded(max_members=63)
    script.silent.add("n200")
    script.hear(Dead(1, "n4", "n3"))
    script.know(200)
    assert "n200" not in [node.name for node in script.core.table]
    script.hear(*[Dead(1, f"n{number}", "n3") for number in range(100, 110)])
    script.run(script.now_ms + 1_000)
    script.know(200)
    names = {node.name for node in script.core.table}
    assert {"me", "n3", "n4", "n110", "n200"} <= names
    assert "n100" not in names
    script.core.check_invariants()


def test_a_stranger_that_answers_takes_the_place_of_an_invented_one_that_lives() -> None:
    """Whoever refutes the deaths of those that it invented keeps a table full, and nobody real out."""
    script = flooded(max_members=63)
    script.know(*range(161, 255))  # more are invented than there are places, n200 to n204 are real
    script.silent |= {f"n{number}" for number in range(100, 255)} - {
        f"n{number}" for number in range(200, 205)
    }
    for incarnation in range(2, 40):
        script.know(*range(100, 255), incarnation=incarnation)
        script.run(script.now_ms + 500)
    names = {node.name for node in script.core.table}
    assert {"me", "n3", "n4"} | {f"n{number}" for number in range(200, 205)} <= names
    assert len(names) == 63
    forgotten = {name for kind, name in script.changes if kind == ChangeKind.LEAVE}
    assert forgotten, "who was forgotten though it seemed to live is told of"
    assert not forgotten & {"n3", "n4", "n200"}
    script.core.check_invariants()


def test_an_answer_from_elsewhere_lets_nobody_in() -> None:
    """The number of a ping is secret, and its answer has to come from where the stranger claims to be. A full
    exchange of state has no more of them asked than a few, each with a packet without news."""
    script = flooded(max_members=63)
    script.silent |= {f"n{number}" for number in range(160, 255)}
    script.sent.clear()
    strangers = [NodeState(f"n{n}", at(n), META, 1, State.ALIVE, VSN) for n in range(160, 255)]
    script.merge(*strangers)
    asked = [(receiver, message) for receiver, message in script.sent if isinstance(message, Ping)]
    assert len(asked) == len(script.sent) == 16
    for receiver, ping in asked:
        script.hear(Ack(ping.sequence), source=STRANGER)
        script.hear(Ack(ping.sequence ^ 1), source=receiver)
        assert script.core.table.get(ping.node) is None
    script.hear(Ack(asked[0][1].sequence), source=asked[0][0])
    assert script.core.table.get(asked[0][1].node) is not None


def test_a_table_of_those_who_answered_is_full() -> None:
    """Nobody who did is forgotten for a stranger, however it proves itself."""
    script = Script(max_members=4)
    script.know(3, 4, 5)
    script.run(20_000)
    assert all(node.answered for node in script.core.table if node.name != "me")
    script.know(6)
    assert script.core.table.get("n6") is None


def test_who_moves_has_to_answer_again() -> None:
    """An answer proves an address, not a name."""
    script = Script()
    script.know(3)
    script.run(5_000)
    node = script.core.table.get("n3")
    assert node is not None
    assert node.answered
    script.hear(Dead(1, "n3", "n2"))
    script.run(6_000)
    script.silent.add("n3")
    script.hear(Alive(2, "n3", at(7), META, VSN))
    assert not node.answered
