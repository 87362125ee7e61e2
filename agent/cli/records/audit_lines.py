"""The records of the topic `_audit` as lines for people, and as they are for programs.

Law of this file: it reads and shows. Agents write the records (agent/security/audit.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from shoal.agent.cli.records.topic_chunks import TopicsRequest, chunks_of
from shoal.agent.cli.terminal.interruption import interruptible
from shoal.agent.cli.terminal.options import Output
from shoal.agent.cli.terminal.output import CliError
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient

TOPIC = "_audit"
POLL_SECONDS = 1.0
COLUMNS = (
    ("time", "TIME", 27),
    ("kind", "KIND", 8),
    ("principal", "PRINCIPAL", 16),
    ("proof", "PROOF", 11),
    ("address", "FROM", 15),
    ("operation", "OPERATION", 18),
    ("outcome", "OUTCOME", 15),
    ("resource", "ON", 0),
)
"""Members of a record, and the least width of their columns: with --follow no later line is known."""


async def show_audit(client: AsyncClient, start: str, output: Output, *, follow: bool) -> None:
    """From `start` on, as the client takes it, up to the end or without one. Raises CliError, ShoalError."""
    request = TopicsRequest((TOPIC,), start, None, None, follow)
    with interruptible() as task:
        try:
            if not await _is_there(client, follow=request.follow):
                raise CliError(
                    "there is no audit yet", "agents that ask for credentials write it: see docs/security.md"
                )
            if output is Output.TABLE:
                _put(line_of({name: title for name, title, _ in COLUMNS}))
            async with contextlib.aclosing(chunks_of(client, request)) as chunks:
                async for _, found in chunks:
                    for value in found.batch.column("value").to_pylist():
                        _put(shown(value or b"", output))
        except asyncio.CancelledError:
            task.uncancel()


async def _is_there(client: AsyncClient, *, follow: bool) -> bool:
    """Whether the topic exists, which `follow` waits for."""
    while True:
        try:
            await client.offsets(TOPIC)
            return True
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise
        if not follow:
            return False
        await asyncio.sleep(POLL_SECONDS)


def shown(value: bytes, output: Output) -> str:
    """A record as a line: for people, or as it is. One of another form is shown whole."""
    text = value.decode("utf-8", "replace")
    if output is Output.JSON:
        return text
    try:
        record = json.loads(text)
    except ValueError:
        return ascii(text)
    return line_of(record) if isinstance(record, dict) else ascii(text)


def line_of(record: dict[str, Any]) -> str:
    """With columns of equal width where their content has it. Nothing of a record moves the cursor."""
    if record.get("kind") == "left-out":
        record = {**record, "resource": f"{record.get('count')} more refusals are not shown"}
    cells = [(str(record.get(name, "-")), width) for name, _, width in COLUMNS]
    return " ".join(
        (text if text.isprintable() else ascii(text)).ljust(width) for text, width in cells
    ).rstrip()


def _put(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
