"""Our own queries, and those of others put to the application: by hand, then over real sockets."""

import asyncio
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.membership.config import GossipConfig
from shoal.membership.interface import PoolQuery, QueryError
from shoal.membership.net.gossip import Membership
from shoal.membership.serf.own_queries import MAX_ASKED, QueryRequest, default_timeout_ms
from shoal.membership.serf.queries import QueryDesk, is_found
from shoal.membership.serf.ready import QueryReply, ReplyKind
from shoal.membership.wire.messages import Endpoint
from shoal.membership.wire.serf import (
    Query,
    QueryResponse,
    decode_node_filter,
    encode_node_filter,
    encode_tag_filter,
)
from tests.membership.serf.test_core import Script
from tests.membership.work import lines_at_most


def test_the_default_timeout_is_serfs() -> None:
    """3.2 s for a pool of up to nine with the LAN profile, twice that for a hundred."""
    assert [default_timeout_ms(200, alive) for alive in (1, 9, 10, 99, 100)] == [3200, 3200, 6400, 6400, 9600]


def test_acknowledgements_and_answers_are_collected_once_each() -> None:
    """By whatever way they come, until the deadline; then the query is over and late ones are nobody's."""
    script = Script()
    key = script.ask(QueryRequest("load", b"?", want_acks=True, timeout_ms=1_000))
    for _ in range(2):  # straight, and by a relay
        script.hear_serf(QueryResponse(*key, "n2", QueryResponse.ACK, b""))
        script.hear_serf(QueryResponse(*key, "n2", 0, b"0.5"))
    script.hear_serf(QueryResponse(key[0], key[1] + 1, "n3", 0, b"of another query"))
    own = QueryReply(key, ReplyKind.ACK, "me", b"")
    assert script.replies == [
        own,
        QueryReply(key, ReplyKind.ACK, "n2", b""),
        QueryReply(key, ReplyKind.ANSWER, "n2", b"0.5"),
    ]
    script.run(1_000)
    script.hear_serf(QueryResponse(*key, "n3", 0, b"late"))
    assert script.replies[3:] == [QueryReply(key, ReplyKind.DONE, "", b"")]


def test_a_query_names_its_filters_and_asks_ourselves_too() -> None:
    """Node and tag filters as Serf encodes them; a filter that leaves us out means no answer of ours."""
    script = Script()
    script.ask(QueryRequest("q", nodes=("n2",), tags={"role": "web.*"}, relay_factor=2))
    assert script.queries == []
    script.run(1_000)
    query = next(message for message in script.told() if isinstance(message, Query))
    assert query.filters == (encode_node_filter(["n2"]), encode_tag_filter("role", "web.*"))
    assert decode_node_filter(query.filters[0]) == ("n2",)
    assert (query.flags, query.relay_factor, query.source_node) == (0, 2, "me")
    script.ask(QueryRequest("q", nodes=("me",)))
    assert [received.name for received in script.queries] == ["q"]


@pytest.mark.parametrize(
    ("expression", "value", "found"),
    [
        ("", "", True),
        ("", "web", True),
        ("web", "my-web-1", True),
        ("web.*", "my-web-1", True),
        ("web", "we-b", False),
        ("^web", "web-1", True),
        ("^web", "my-web-1", False),
        ("^web.*", "web\n1", True),
        ("^web$", "web", True),
        ("^web$", "web\n", False),
        ("^web.*$", "web-1", True),
        ("^web.*$", "web\n1", False),
        ("web$", "my-web", True),
        ("web$", "my-web-1", False),
        ("web.*$", "web\nweb-1", True),
        ("web.*$", "web-1\n", False),
        ("^$", "", True),
        ("^$", "web", False),
        ("$", "web", True),
        ("^.*$", "web", True),
        (r"v1\.2\-3", "v1.2-3", True),
        (r"v1\.2", "v1x2", False),
        ("\u00e4", "l\u00e4nge", True),
        # Right in Go, and nobody's here.
        ("w.b", "web", False),
        ("^ou[a-z]{2}$", "ours", False),
        ("web|db", "web", False),
        ("(?i)WEB", "web", False),
        (r"\bweb", "web", False),
        ("web.*.*", "web", False),
        ("(web)", "web", False),
        ("we+b", "web", False),
        ("a" * 513, "a" * 600, False),
    ],
)
def test_a_tag_filter_is_a_text_with_or_without_its_ends(expression: str, value: str, found: bool) -> None:
    """As Go's search answers; every other expression is answered by silence."""
    desk = QueryDesk("me", lambda: {"role": value})
    asker = Endpoint(bytes((10, 0, 0, 2)), 7946)
    query = Query(4, 7, asker, "n2", (encode_tag_filter("role", expression),), 0, 0, 10**9, "uptime", b"")
    assert desk.is_meant(query) is found
    assert (desk.open(query, 0) is not None) is found


@given(
    st.sampled_from(["", "^"]),
    st.text(alphabet="ab.-\\", max_size=3),
    st.sampled_from(["", ".*"]),
    st.sampled_from(["", "$"]),
    st.text(alphabet="ab.-\\\n", max_size=6),
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_a_text_is_found_as_a_whole_engine_finds_it(
    begin: str, text: str, rest: str, end: str, value: str
) -> None:
    """Of the library, whose `\\Z` is Go's `$`."""
    body = begin + re.escape(text) + rest
    expected = re.search(body + (r"\Z" if end else ""), value) is not None
    assert is_found(body + end, value) is expected


@given(st.text(alphabet="ab.*^$\\-[|(", max_size=10), st.text(alphabet="ab-.\n", max_size=12))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_nothing_is_found_that_a_whole_engine_does_not_find(expression: str, value: str) -> None:
    """Any text is an expression, or is not understood; neither is an error."""
    if is_found(expression, value):
        assert re.search(expression, value) is not None


@pytest.mark.parametrize("expression", ["\\." * 256, "^" + "a" * 511, "a" * 511 + "b", "\\" * 512])
def test_a_tag_filter_takes_bounded_work(expression: str) -> None:
    """Also where nothing is found."""
    with lines_at_most(10_000):
        is_found(expression, "a" * 512)


def test_the_application_answers_once_and_in_time() -> None:
    """To the asker, and never after the deadline or twice; nor to a query that was none of its business."""
    script = Script()
    asker = Endpoint(bytes((10, 0, 0, 2)), 7946)
    for number, name in ((7, "uptime"), (8, "uptime"), (9, "_serf_future")):
        script.hear_serf(Query(4, number, asker, "n2", (), 0, 0, 500_000_000, name, b"x"))
    assert [(received.name, received.key) for received in script.queries] == [
        ("uptime", (4, 7)),
        ("uptime", (4, 8)),
    ]
    script.core.respond((4, 7), b"3 days", script.now_ms)
    with pytest.raises(KeyError):
        script.core.respond((4, 7), b"again", script.now_ms)
    with pytest.raises(ValueError, match="1024"):
        script.core.respond((4, 8), bytes(2_000), script.now_ms)
    with pytest.raises(KeyError):
        script.core.respond((4, 8), b"late", script.now_ms + 501)
    with pytest.raises(KeyError):
        script.core.respond((4, 9), b"", script.now_ms)


def test_queries_are_bounded() -> None:
    """In size and in number, theirs and ours."""
    script = Script()
    with pytest.raises(ValueError, match="1024"):
        script.core.query(QueryRequest("q", bytes(1_024)), 0)
    for _ in range(MAX_ASKED):
        script.core.query(QueryRequest("q", nodes=("n2",)), 0)
    with pytest.raises(ValueError, match="under way"):
        script.core.query(QueryRequest("q"), 0)
    asker = Endpoint(bytes((10, 0, 0, 2)), 7946)
    for number in range(1_000):
        script.hear_serf(Query(70 + number, number, asker, "n2", (), 0, 0, 60_000_000_000, "q", b""))
    with pytest.raises(KeyError):
        script.core.respond((70, 0), b"", script.now_ms)
    script.core.respond((70 + 999, 999), b"", script.now_ms)
    script.core.check_invariants()


async def test_a_query_over_real_sockets() -> None:
    """Both members answer, and asking ends as soon as those who were expected have; too long is an error."""
    answers = {"a": b"from a", "b": b"from b"}
    heard: list[PoolQuery] = []

    def member(name: str) -> Membership:
        def on_query(query: PoolQuery) -> bytes | None:
            heard.append(query)
            return answers[name]

        config = GossipConfig.local(name=name, gossip_interval_ms=20)
        return Membership(config, rng=random.Random(name), on_event=lambda _: None, on_query=on_query)

    one, two = member("a"), member("b")
    await one.start()
    await two.start()
    try:
        await two.join([("127.0.0.1", one.port)])
        request = QueryRequest("who", b"?", want_acks=True, timeout_ms=5_000)
        started = asyncio.get_running_loop().time()
        result = await one.query(request, enough=["a", "b"])
        assert asyncio.get_running_loop().time() - started < 4
        assert (result.answers, result.acknowledged) == (answers, {"a", "b"})
        assert heard == [PoolQuery("who", b"?")] * 2
        with pytest.raises(QueryError, match="1024"):
            await one.query(QueryRequest("q", bytes(2_000)))
        with pytest.raises(QueryError, match="the protocol's own"):
            await one.query(QueryRequest("_serf_ping"))
        waiting = asyncio.create_task(one.query(QueryRequest("q", timeout_ms=60_000)))
        await asyncio.sleep(0.05)
        await one.stop()
        with pytest.raises(QueryError, match="stopped"):
            await waiting
    finally:
        await one.stop()
        await two.stop()
