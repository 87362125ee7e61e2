"""The pure parts of the HTTP side: routes, queries, names, hosts, forwarding's meanings."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.http.admission.origin import REMEMBERED_HOSTS_MAX, HostPolicy, host_name
from shoal.agent.http.api.needs import OtherNeed
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.core.body import media_type
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import REMEMBERED_PATHS_MAX, Route, RouteTable
from shoal.agent.http.core.forward import broken, forward_target
from shoal.agent.http.core.parameters import decode_segment, parse_query
from shoal.agent.http.core.problems import date_text
from shoal.agent.http.core.respond import PIECE_BYTES, UNCOPIED_BYTES, coalesced
from shoal.errors import ShoalError


def refusal(function: Callable[[], object]) -> str | None:
    """The code of the ShoalError that a call raises, None for none."""
    try:
        function()
    except ShoalError as error:
        return error.code
    return None


async def handler(call: Call) -> aiohttp.web.Response:
    return aiohttp.web.Response()


def operation(method: str, path: str) -> Operation:
    """One that takes nothing."""
    return Operation("name", f"{method} {path}", "", {}, needs=OtherNeed.NOTHING)


TABLE = RouteTable(
    [
        Route(operation("GET", "/v1/things"), handler),
        Route(operation("PUT", "/v1/things/{thing}"), handler),
        Route(operation("GET", "/v1/things/special"), handler),
        Route(operation("GET", "/v1/things/{thing}/parts/{part}"), handler),
        Route(operation("GET", "/v1/tables/{topic}"), handler),
        Route(operation("GET", "/v1/tables/{topic}/{key}"), handler),
    ],
    {("POST", "/v1/things/{thing}"): "say PUT"},
)


@pytest.mark.parametrize(
    ("method", "path", "route", "arguments"),
    [
        ("GET", "/v1/things", "/v1/things", ()),
        ("HEAD", "/v1/things", "/v1/things", ()),
        ("PUT", "/v1/things/a%2Fb", "/v1/things/{thing}", ("a/b",)),
        ("PUT", "/v1/things/%252F", "/v1/things/{thing}", ("%2F",)),
        ("GET", "/v1/things/special", "/v1/things/special", ()),
        ("GET", "/v1/tables/a%2Fb", "/v1/tables/{topic}", ("a/b",)),
        ("GET", "/v1/tables/a%2Fb/", "/v1/tables/{topic}/{key}", ("a/b", "")),
        ("GET", "/v1/tables/t//x/../y/", "/v1/tables/{topic}/{key}", ("t", "/x/../y/")),
        ("GET", "/v1/tables/t/%2F%252F%00%FF%", "/v1/tables/{topic}/{key}", ("t", "%2F%252F%00%FF%")),
        ("GET", "/v1/things/a/parts/b", "/v1/things/{thing}/parts/{part}", ("a", "b")),
    ],
)
def test_dispatch(method: str, path: str, route: str, arguments: tuple[str, ...]) -> None:
    """Paths are split first and decoded once; the answer is the same when remembered."""
    for _ in range(2):
        found, decoded = TABLE.resolve(method, path)
        assert (found.operation.path, decoded) == (route, arguments)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", "unknown-route"), ("GET", "", "unknown-route"), ("GET", "/v1", "unknown-route"),
        ("GET", "/v1/things/", "unknown-route"), ("GET", "//v1/things", "unknown-route"),
        ("GET", "/v1/things/a/parts", "unknown-route"), ("GET", "/v1/THINGS", "unknown-route"),
        ("GET", "/v1/%74hings", "unknown-route"), ("GET", "/v1/things/a", "method-not-allowed"),
        ("get", "/v1/things", "method-not-allowed"), ("PUT", "/v1/things/%ff", "bad-request"),
    ],
)  # fmt: skip
def test_dispatch_refuses(method: str, path: str, code: str) -> None:
    """Near misses are not guessed at."""
    with pytest.raises(ShoalError) as caught:
        TABLE.resolve(method, path)
    assert caught.value.code == code


def test_hints_and_memory() -> None:
    """A hint is part of the 405; the memory of paths does not grow without bound."""
    with pytest.raises(ShoalError, match="say PUT"):
        TABLE.resolve("POST", "/v1/things/x")
    for number in range(3 * REMEMBERED_PATHS_MAX):
        TABLE.resolve("PUT", f"/v1/things/{number}")
    TABLE.resolve("PUT", "/v1/things/" + "x" * 8000)
    assert len(TABLE._remembered) <= REMEMBERED_PATHS_MAX
    assert all(len(path) <= 512 for _, path in TABLE._remembered)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", {}), ("a=1", {"a": "1"}), ("a=1&b=2", {"a": "1", "b": "2"}), ("a", {"a": ""}), ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}), ("&&a=1&", {"a": "1"}), ("a=%41+%2B", {"a": "A +"}), ("%61=1", {"a": "1"}),
        ("a=caf%C3%A9", {"a": "café"}), ("a=%2", {"a": "%2"}),
    ],
)  # fmt: skip
def test_queries(text: str, query: dict[str, str]) -> None:
    """Queries are decoded as forms are."""
    assert parse_query(text, frozenset(("a", "b"))) == query


@pytest.mark.parametrize("text", ["a=1&a=2", "a=1&a=1", "a&b=1&a", "a=1&%61=1"])
def test_a_parameter_is_given_once(text: str) -> None:
    """Else one reader would take the first and another the last."""
    assert refusal(lambda: parse_query(text, frozenset(("a", "b")))) == "bad-request"


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=60))
def test_any_query_is_read_or_refused(text: str) -> None:
    """Whatever the query, there is an answer or a bad-request."""
    assert refusal(lambda: parse_query(text, frozenset(("a", "b")))) in (None, "bad-request")


@given(st.text(max_size=30))
def test_segments_decode_or_are_refused(segment: str) -> None:
    """A segment decodes to text, or is a bad-request."""
    assert refusal(lambda: decode_segment(segment)) in (None, "bad-request")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("a", "a"), ("A.b:7070", "a.b"), ("a.", "a"), ("[::1]", "::1"), ("[::1]:7070", "::1"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("", None), (":7070", None), ("a:b", None), ("a:123456", None), ("[::1", None), ("[]", None),
        ("[::1]x", None),
        ("::1", None), ("a:", "a"),
    ],
)  # fmt: skip
def test_host_names(host: str, name: str | None) -> None:
    """HOST[:PORT] and [ADDRESS][:PORT]; all else is no host."""
    assert host_name(host) == name


def test_host_policy() -> None:
    """Own names and numbers pass, other names do not, and the memory of good hosts is bounded."""
    policy = HostPolicy("http://agent.example:7070")
    for host in (
        "agent.example",
        "AGENT.example:80",
        "10.1.2.3:7070",
        "[fe80::1]:7070",
        None,
    ):
        policy.check(host, None)
    for host in ("evil.example", "agent.example.evil", "127.0.0.1.evil.example", "0x7f.1", "127.1"):
        with pytest.raises(ShoalError, match="foreign-origin"):
            policy.check(host, None)
    policy.check("agent.example", "https://agent.example")
    for origin in (
        "http://evil.example",
        "null",
        "",
        "file://",
        "http://agent.example:7071",
        "ftp://agent.example:7070",
    ):
        with pytest.raises(ShoalError, match="foreign-origin"):
            policy.check("agent.example:7070", origin)
    policy.check("agent.example", "https://agent.example", over_tls=True)
    with pytest.raises(ShoalError, match="foreign-origin"):  # somebody on the way has made that page
        policy.check("agent.example", "http://agent.example", over_tls=True)
    for number in range(REMEMBERED_HOSTS_MAX + 100):
        policy.check(f"10.0.{number // 250}.{number % 250}:{number}", None)
    assert len(policy._good) <= REMEMBERED_HOSTS_MAX


@pytest.mark.parametrize(
    ("header", "media"),
    [
        (None, ""), ("application/JSON", "application/json"),
        ("application/json;charset=utf-8", "application/json"),
        ('text/plain; charset="UTF-8"', "text/plain"), ("text/plain; format=flowed", "text/plain"),
        ("multipart/form-data; boundary=x; charset=latin-1", "multipart/form-data"), ("", ""),
    ],
)  # fmt: skip
def test_media_types(header: str | None, media: str) -> None:
    """The essence in lower case; UTF-8 is the only charset."""
    assert media_type(header) == media


def test_forward_target() -> None:
    """The next hop gets the same query, but for `forward`, with less time."""
    target = forward_target(
        "/v1/x", {"acks": "all", "key": "a b&c", "timeout": "5s", "forward": "true"}, 1000
    )
    path, _, query = target.partition("?")
    assert path == "/v1/x"
    sent = parse_query(query, frozenset(("acks", "key", "timeout")))
    assert (sent["acks"], sent["key"]) == ("all", "a b&c")
    assert 0 < int(sent["timeout"].removesuffix("ms")) < 1000
    assert forward_target("/v1/x", {}, 0) == "/v1/x?timeout=1ms"


@pytest.mark.parametrize(
    ("error", "method", "code", "definite"),
    [
        (aiohttp.ServerDisconnectedError(), "POST", "leadership-lost", False),
        (aiohttp.ServerDisconnectedError(), "GET", "leadership-lost", True),
        (aiohttp.ClientPayloadError("cut"), "PUT", "leadership-lost", False),
        (TimeoutError(), "POST", "timeout", False),
        (TimeoutError(), "HEAD", "timeout", True),
        (aiohttp.ConnectionTimeoutError(), "POST", "no-leader", True),
        (ConnectionResetError(), "DELETE", "leadership-lost", False),
    ],
)
def test_what_a_broken_forward_means(error: Exception, method: str, code: str, definite: bool) -> None:
    """Definite only where the request certainly was not received, or changes nothing."""
    problem = broken(error, "http://x", method)
    assert (problem.code, problem.definite) == (code, definite)


@given(st.lists(st.binary(max_size=50), max_size=30))
def test_small_parts_are_joined(parts: list[bytes]) -> None:
    """Pieces add up to the parts, no two in a row are small, and large parts are not copied."""
    scaled = [part * (PIECE_BYTES // 40) for part in parts]
    pieces = coalesced(scaled)
    assert b"".join(pieces) == b"".join(scaled)
    assert all(max(map(len, pair)) >= UNCOPIED_BYTES for pair in itertools.pairwise(pieces))
    large = [id(part) for part in scaled if len(part) >= UNCOPIED_BYTES]
    assert [id(piece) for piece in pieces if id(piece) in large] == large


def test_only_a_path_that_leads_nowhere_is_meant_without_its_slash() -> None:
    """A slash at the end of a row's key belongs to it; what changes something is sent nowhere."""
    assert TABLE.shorter("GET", "/v1/things/") == "/v1/things"
    assert TABLE.shorter("HEAD", "/v1/things///") == "/v1/things"
    for method, path in (
        ("GET", "/v1/tables/t/"), ("GET", "/v1/tables/t/k/"), ("PUT", "/v1/things/"), ("GET", "/"),
        ("GET", "//"), ("GET", "//v1/things/"), ("GET", "/v1/none/"),
    ):  # fmt: skip
        assert TABLE.shorter(method, path) is None, path


def test_a_date_is_of_its_second() -> None:
    """The example of RFC 9110, 5.6.7; each second has its own."""
    said = [date_text(second) for second in (784_111_777, 784_111_777, 784_111_778, 784_111_777)]
    assert said == [f"Sun, 06 Nov 1994 08:49:{second} GMT" for second in (37, 37, 38, 37)]
