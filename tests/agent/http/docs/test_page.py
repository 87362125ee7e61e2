"""/docs: a whole page that shows every route, of an agent as it runs."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser

from http_fixtures import one_agent
from json_schema import faults

from shoal.agent.http.api import cluster_operations, operations
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.needs import OtherNeed
from shoal.agent.http.api.operation import Answer, Operation, Parameter
from shoal.agent.http.docs.page import docs_page
from shoal.errors import ERRORS

VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """What stands where; every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.fields: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if (name := values.get("id")) is not None:
            self.ids.append(name)
        if (target := values.get("href")) is not None:
            self.links.append(target)
        if (
            tag in ("link", "img", "iframe")
            or "src" in values
            or any(name.startswith("on") for name in values)
        ):
            self.loads.append(tag)
        if tag == "input":
            self.fields.append(values)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data


async def test_the_page_shows_every_route_and_every_error() -> None:
    """Each operation of /openapi.json with its parameters, each code; links lead somewhere; nothing else is
    loaded."""
    async with one_agent() as agent:
        answer = await agent.get("/docs")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        page = Page(answer.body.decode())
        document = (await agent.get("/openapi.json")).json
        operations = [
            item for path in document["paths"].values() for item in path.values() if "operationId" in item
        ]
        assert page.open == page.loads == []
        assert len(set(page.ids)) == len(page.ids)
        assert {operation["operationId"] for operation in operations} < set(page.ids)
        for operation in operations:
            assert operation["summary"].replace("`", "") in page.text
            for parameter in operation.get("parameters", []):
                assert parameter["name"] in page.text
        assert all(code in page.text for code in ERRORS)
        for link in page.links:
            if link.startswith("#"):
                assert link[1:] in page.ids
            elif link not in ("/v1/events", "/docs"):
                assert (await agent.get(link)).status in (200, 503), link


async def test_the_page_shows_what_a_body_may_have_and_an_example_of_it() -> None:
    """The members of each JSON body, those within included; an example is one that the schema takes."""
    async with one_agent() as agent:
        page = Page((await agent.get("/docs")).body.decode())
        document = (await agent.get("/openapi.json")).json
    for name in ("records[].key_base64", "retention.age", "segment.bytes", "accept_data_loss", "addresses"):
        assert name in page.text
    bodies = {
        operation.name: operation.body
        for operation in (vars(operations) | vars(cluster_operations)).values()
        if isinstance(operation, Operation) and operation.body is not None
    }
    assert len(bodies) >= 8
    for name, body in bodies.items():
        assert body.example is not None, name
        assert faults(body.content[JSON_TYPE], json.loads(body.example), document) == [], name
        assert f"--json '{body.example}'" in page.text, name
    assert "7070/v1/topics/orders/partitions/0/records --json" in page.text
    assert "replication_factorHow many, or all" in page.text


async def test_the_one_script_is_allowed_by_its_hash_and_the_token_stays_out_of_addresses() -> None:
    """A browser runs what has that hash, asks the page's own agent alone, and sends no form by itself."""
    async with one_agent() as agent:
        answer = await agent.get("/docs")
        page = Page(answer.body.decode())
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    assert policy["form-action"] == policy["default-src"] == "'none'"
    assert script.count("fetch(") == 1
    assert 'fetch("/v1/session"' in script
    (field,) = page.fields
    assert (field["type"], field["autocomplete"], "name" in field) == ("password", "off", False)


def test_what_is_described_is_never_markup() -> None:
    """Names and sentences are text; what stands in backquotes is code."""
    odd = Parameter("a<b", "See `x<y` & <script>.", {"enum": ["<one>"]})
    operation = Operation(
        "odd", "GET /odd", "A < b.", {200: Answer("Done <b>.")}, (odd,), needs=OtherNeed.NOTHING
    )
    text = docs_page([operation], "Hello <i>.")
    page = Page(text)
    assert (page.loads, len(page.scripts)) == ([], 1)
    assert "<code>x&lt;y</code> &amp; &lt;script&gt;. One of <code>&lt;one&gt;</code>." in text
    assert "Hello <i>." in page.text
