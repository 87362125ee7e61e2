"""GET /docs: the routes and the errors as one page for a person with a browser.

Made of the same values as /openapi.json and of the error table. Pure: text in, text out. The page needs no
other file and no network, and no script but that of its login form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from shoal.agent.http.api.needs import told
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter, Schema, is_variable
from shoal.agent.http.api.schemas import SCHEMAS
from shoal.agent.http.docs.login_form import LOGIN_FORM, SCRIPT_HASH
from shoal.errors import ERRORS

SECURITY_POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src '{SCRIPT_HASH}'; connect-src 'self';"
    " object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886 } h3 { margin-top: 2rem }
code { font: 0.9em ui-monospace, monospace } h3 code { font-size: 1em }
table { border-collapse: collapse; width: 100% } th { text-align: left }
th, td { padding: 0.2rem 1rem 0.2rem 0; vertical-align: top; border-bottom: 1px solid #8883 }
nav a { display: inline-block; margin-right: 1rem } :root { color-scheme: light dark }
pre { overflow-x: auto }
@media (max-width: 45rem) { body { overflow-wrap: anywhere } th, td { padding-right: 0.5rem } }
"""
_GROUPS = (
    ("Topics", "/v1/topics"),
    ("Members", "/v1/members"),
    ("Principals", "/v1/principals"),
    ("Roles", "/v1/roles"),
    ("Tokens", "/v1/tokens"),
    ("Sessions", "/v1/session"),
    ("Routes and events", "/v1/"),
    ("Operation", "/"),
)
"""Titles, and what the paths below each begin with; the first that fits counts."""
_RECORDS = "Records"
_CONSUMER_GROUPS = "Consumer groups"
_TABLES = "Tables"
_EXAMPLES = {
    "{topic}": "orders",
    "{group}": "billing",
    "{consumer}": "worker-1",
    "{partition}": "0",
    "{kept}": "orders",
    "{principal}": "ann",
    "{role}": "clerk",
    "{key}": "users/ann",
}


def docs_page(operations: Iterable[Operation], introduction: str) -> str:
    """The whole page, as HTML."""
    groups: dict[str, list[Operation]] = {
        title: [] for title in (_RECORDS, _CONSUMER_GROUPS, _TABLES, *dict(_GROUPS))
    }
    for operation in operations:
        groups[group_of(operation)].append(operation)
    titles = [title for title, members in groups.items() if members]
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in [*titles, "Errors"])
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Shoal's HTTP API</title><style>{_STYLE}</style></head><body>",
        f"<h1>Shoal's HTTP API</h1><p>{_text(introduction)}</p>",
        '<p>For tools: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p>',
        f"<nav>{links}</nav>",
        LOGIN_FORM,
    ]
    for title in titles:
        parts.append(f'<h2 id="{_anchor(title)}">{escape(title)}</h2>')
        parts += [_operation(item) for item in sorted(groups[title], key=lambda item: item.path)]
    parts += ['<h2 id="errors">Errors</h2>', _errors(), "</body></html>\n"]
    return "\n".join(parts)


def group_of(operation: Operation) -> str:
    """The operation's chapter of the page, and its module in generated clients."""
    if operation.path.endswith(("/records", "/batch")):
        return _RECORDS
    if "/groups" in operation.path:
        return _CONSUMER_GROUPS
    if operation.path.startswith("/v1/tables"):
        return _TABLES
    return next(title for title, prefix in _GROUPS if operation.path.startswith(prefix))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _text(text: str) -> str:
    """A sentence; what stands in backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _operation(operation: Operation) -> str:
    path, needs = escape(operation.path), told(operation.needs)
    shown = f'<a href="{path}">{path}</a>' if _can_be_followed(operation) else path
    parts = [
        f'<h3 id="{escape(operation.name)}"><code>{operation.method} {shown}</code></h3>',
        f"<p>{_text(operation.summary)}</p>",
        f"<p>Needs: {_text(f'`{needs}`' if needs else 'nothing')}</p>",
    ]
    inputs = [("query", item) for item in operation.parameters]
    inputs += [("header", item) for item in operation.headers]
    if inputs:
        parts.append(
            _table(("Parameter", "", "What it does"), (_parameter(place, item) for place, item in inputs))
        )
    if operation.body is not None:
        parts.append(_body(operation.body))
        if operation.body.example is not None:
            path = "/".join(_EXAMPLES.get(part, part) for part in operation.path.split("/"))
            line = f"curl -X {operation.method} http://127.0.0.1:7070{path} --json '{operation.body.example}'"
            parts.append(f"<pre><code>{escape(line, quote=False)}</code></pre>")
    parts.append(_table(("Status", "Answer", "As"), map(_answer, sorted(operation.answers.items()))))
    return "\n".join(parts)


def _body(body: Body) -> str:
    """The media types, and the members of the JSON among them."""
    needed = "" if body.required else " (may be left out)"
    told = f"<p>Body{needed}: {_content(body.content)}</p>"
    members = [row for schema in body.content.values() if "$ref" in schema for row in _members(schema, "")]
    return told + (_table(("Member", "", "What it is"), members) if members else "")


def _members(schema: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    """An object's members; those of its objects and lists stand behind their own."""
    schema = _resolved(schema)
    for name, member in schema.get("properties", {}).items():
        at, member = f"{prefix}{name}", _resolved(member)
        kind = "required" if name in schema.get("required", ()) else ""
        told = _text(member.get("description", "")) or escape(_kind(member))
        yield f"<code>{escape(at)}</code>", kind, told + _values(member)
        yield from _members(member.get("items", member), f"{at}[]." if "items" in member else f"{at}.")


def _resolved(schema: Schema) -> Schema:
    """The schema that a name stands for; of a nullable one the part that is not null."""
    if "$ref" in schema:
        return _resolved(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) != 1:
        return schema
    return _resolved({**choices[0], **{word: told for word, told in schema.items() if word != "anyOf"}})


def _kind(schema: Schema) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    return " or ".join(dict.fromkeys(str(kind["type"]) for kind in kinds if "type" in kind))


def _can_be_followed(operation: Operation) -> bool:
    """Whether a click shows something: there is nothing to fill in."""
    complete = not any(is_variable(part) for part in operation.path.split("/")) and not any(
        item.required for item in operation.parameters
    )
    return operation.method == "GET" and 200 in operation.answers and complete


def _parameter(place: str, parameter: Parameter) -> tuple[str, str, str]:
    kind = place + (", required" if parameter.required else "")
    return (
        f"<code>{escape(parameter.name)}</code>",
        kind,
        _text(parameter.description) + _values(parameter.schema),
    )


def _values(schema: Schema) -> str:
    values = schema.get("enum", ())
    examples = schema.get("examples", ())
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values or examples]
    shown = ", ".join(f"<code>{escape(word)}</code>" for word in words)
    if not shown:
        return ""
    return f" One of {shown}." if values else f" For example {shown}."


def _answer(item: tuple[int, Answer]) -> tuple[str, str, str]:
    status, answer = item
    told = _text(answer.description)
    if answer.headers:
        told += " Headers: " + ", ".join(f"<code>{escape(name)}</code>" for name in answer.headers)
    return str(status), told, _content(answer.content)


def _content(content: Mapping[str, Schema]) -> str:
    return "<br>".join(f"<code>{escape(media)}</code>" for media in content)


def _errors() -> str:
    rows = (
        (
            str(row.status),
            f"<code>{row.code}</code>",
            escape(row.title),
            "yes" if row.retriable else "no",
            "yes" if row.definite else "no",
        )
        for row in ERRORS.values()
    )
    told = (
        "<p>Every refusal is a problem document (RFC 9457). <code>code</code> never changes its meaning. "
        "Worth repeating: the same request may succeed later, or elsewhere. Certain: what was asked did not "
        "happen.</p>"
    )
    return told + _table(("Status", "Code", "Meaning", "Worth repeating", "Certain"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Cells are HTML already."""
    titles = "".join(f"<th>{title}</th>" for title in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>\n{lines}</table>"
