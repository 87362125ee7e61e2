"""Names to addresses: aside from the loop, bounded, one question at a time; failures name the name."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Sequence

import pytest

from shoal import lookup as module
from shoal.addresses import HOST_NAME_CHARACTERS_MAX, is_host_name, named_url, plain_origin, url_at
from shoal.lookup import FoundAddresses, Lookup, LookupFailed


class Resolver:
    """A resolver that answers when it is let; `answers` may change at any time."""

    def __init__(self, **answers: Sequence[str] | OSError) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.is_up = threading.Event()
        self.is_up.set()

    def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        assert self.is_up.wait(60)
        answer = self.answers.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, OSError):
            raise answer
        return answer


async def test_each_lookup_asks_anew_and_an_address_asks_nobody() -> None:
    """A name that leads elsewhere is followed at the next connection."""
    resolver = Resolver(a=["10.0.0.1", "10.0.0.2"])
    lookup = Lookup(resolver)
    assert await lookup.addresses("a") == ("10.0.0.1", "10.0.0.2")
    resolver.answers["a"] = ["10.0.0.9"]
    assert await lookup.find("a") == FoundAddresses(("10.0.0.9",))
    for address in ("127.0.0.1", "::1", "fe80::1%lo"):
        assert await lookup.addresses(address) == (address,)
    assert resolver.asked == ["a", "a"]


async def test_a_name_without_addresses_is_named() -> None:
    """Unknown, empty, and no name at all."""
    resolver = Resolver(empty=[], odd=OSError("out of order"))
    for name, reason in (("b", "not known"), ("empty", "has no address"), ("odd", "out of order")):
        with pytest.raises(LookupFailed, match=rf"the name {name} has no address.*{reason}|{name} {reason}"):
            await Lookup(resolver).addresses(name)
    for name in ("a..b", "a\0b", "x" * 300):
        with pytest.raises(LookupFailed, match=re.escape(name)):
            await Lookup().addresses(name)


async def test_a_resolver_that_hangs_holds_up_nobody() -> None:
    """The loop runs on, the time is bounded, the name is asked for once, and the last answer stays in force.
    That the name is gone is an answer, too."""
    resolver = Resolver(a=["10.0.0.1"])
    lookup = Lookup(resolver, limit_s=0.05)
    assert await lookup.addresses("a") == ("10.0.0.1",)
    resolver.is_up.clear()
    try:
        turns = asyncio.ensure_future(_turns())
        found = await asyncio.gather(lookup.find("a"), lookup.find("a"))
        assert found == [FoundAddresses(("10.0.0.1",), is_known=True)] * 2
        with pytest.raises(LookupFailed, match="the name b could not be looked up: no answer"):
            await lookup.addresses("b")
        assert resolver.asked == ["a", "a", "b"]
        turns.cancel()
    finally:
        resolver.is_up.set()
    resolver.answers["a"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    lookup = Lookup(resolver)
    with pytest.raises(LookupFailed, match="Temporary failure"):
        await lookup.addresses("a")
    resolver.answers["a"] = ["10.0.0.2"]
    assert await lookup.addresses("a") == ("10.0.0.2",)
    resolver.answers["a"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert await lookup.find("a") == FoundAddresses(("10.0.0.2",), is_known=True)
    del resolver.answers["a"]
    with pytest.raises(LookupFailed, match="not known"):
        await lookup.addresses("a")


async def _turns() -> None:
    while True:
        await asyncio.sleep(0)


async def test_lookups_and_what_is_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names beyond the bound are refused while the others wait; the oldest answer is forgotten first."""
    monkeypatch.setattr(module, "LOOKUPS_MAX", 2)
    monkeypatch.setattr(module, "REMEMBERED_MAX", 2)
    resolver = Resolver(**{name: ["10.0.0.1"] for name in "abcd"})
    lookup = Lookup(resolver, limit_s=60)
    resolver.is_up.clear()
    waiting = [asyncio.ensure_future(lookup.addresses(name)) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailed, match="the name c was not looked up: 2 other lookups wait"):
        await lookup.addresses("c")
    waiting[0].cancel()
    resolver.is_up.set()
    assert await waiting[1] == ("10.0.0.1",)
    for name in "cd":
        await lookup.addresses(name)
    unanswered = socket.gaierror(socket.EAI_AGAIN, "later")
    resolver.answers = dict.fromkeys("bcd", unanswered)
    with pytest.raises(LookupFailed):
        await lookup.find("b")
    assert (await lookup.find("c")).is_known


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("shoal-0.shoal.default.svc.cluster.local", True),
        ("agent_1", True),
        ("localhost", True),
        ("3com.example", True),
        ("10.0.0.1", False),
        ("10.1", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("a.0X1", False),
        ("::1", False),
        ("a.example.", False),
        (".example", False),
        ("-a.example", False),
        ("a-.example", False),
        ("a b", False),
        ("a:7070", False),
        ("a/b", False),
        ("bücher.example", False),
        ("x" * 64, False),
        ("x." * (HOST_NAME_CHARACTERS_MAX // 2) + "xy", False),
        ("", False),
    ],
)
def test_what_a_host_name_is(text: str, is_name: bool) -> None:
    """No number that a resolver takes for an address, nothing that does not fit into a URL's authority."""
    assert is_host_name(text) == is_name


def test_a_url_by_name_keeps_its_port_and_nothing_else_is_a_url() -> None:
    """What is no name, or no agent's URL, changes nothing."""
    assert named_url("http://10.0.0.1:7070", "a.example") == "http://a.example:7070"
    assert named_url("http://[fd00::1]:80", "a") == "http://a:80"
    for name in ("", "a/b", "10.0.0.9", "a@b"):
        assert named_url("http://10.0.0.1:7070", name) == "http://10.0.0.1:7070"
    assert named_url("http://b.example:7070", "a") == "http://b.example:7070"
    assert url_at("fd00::1", 7) == "http://[fd00::1]:7"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://App.Example.com", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://app.example.com/", None),
        ("https://app.example.com:70000", None),
        ("https://*.example.com", None),
        ("app.example.com", None),
        ("file://", None),
        ("null", None),
        ("*", None),
        ("", None),
    ],
)
def test_what_an_origin_is(text: str, origin: str | None) -> None:
    """As browsers send it: nothing behind the port."""
    assert plain_origin(text) == origin
