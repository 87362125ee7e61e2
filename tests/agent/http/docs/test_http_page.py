"""The page about the HTTP API says what is so: its commands run, its routes and limits are the server's."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import shlex
import shutil
from typing import Any
from urllib.parse import urlsplit

import pytest
from http_fixtures import one_agent
from json_schema import answer_faults

from shoal.agent.http.admission.answer_room import ANSWER_SHARE
from shoal.agent.http.admission.limits import MIB, HttpLimits
from shoal.format.record_text import EMBEDDED_BYTES_MAX
from tests.agent.agents import agents_in

PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "http.md"
GOSSIP_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
# What each command's answer has to begin with; the page's commands in order.
ANSWERS = (
    b'{"count":1,', b'{"topic":"greetings"', b'{"name":"flights"', b'{"topics":[',
    b'{"name":"flights"',
    b'{"partitions":[{"partition":0,', b'{"partitions":[{"partition":0,', b'{"partitions":[{"partition":0,',
    b'{"topic":"flights","version":', b'{"name":"flights"', b'{"name":"flights"',
    b'{"log_start_offset":0}', b"",
    b'{"count":2,',
    b'{"count":1,',
    b'{"count":2,', b'{"count":1,', b'{"topic":"orders"', b'{"topic":"orders"', b'{"item":7}\n',
    b'{"topic":"orders"',
    b'{"topic":"orders"', b"", b": still here\n\nid: ",
    b'{"topic":"orders","records":[{"partition":0,"offset":0', b"", b": still here\n\nid: 0:",
    b'{"cluster":', b'{"cluster":', b'{"version":', b'{"version":', b'{"id":',
    b'{"members":1,"keys":[', b'{"level":',
    b'{"name":"ann"', b'{"name":"clerk"', b'{"name":"bob"', b'{"token":"shoal_', b'{"principals":[',
    b'{"openapi":"3.1.0"', b"<!doctype html>", b'{"status":"alive"}',
    b'{"status":"ready","checks":', b"# ", b"# ",
)  # fmt: skip


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


async def shell(command: str, directory: pathlib.Path) -> bytes:
    process = await asyncio.create_subprocess_shell(
        command, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        output, complaint = await process.communicate()
    assert process.returncode == 0, (command, complaint)
    return output


def pointed_at(command: str, host: str) -> str:
    """The command for the agent there, silent, failing on errors, with status and media type at its end."""
    told = "-w '\\n#%{http_code}\\n#%{content_type}'"
    return command.replace("curl ", f"curl -sS --noproxy '*' --fail-with-body {told} ").replace(
        "127.0.0.1:7070", host
    )


@pytest.mark.slow
async def test_every_command_works(tmp_path: pathlib.Path) -> None:
    """Each curl command of the page succeeds at a whole agent, in the page's order, with the answer that the
    page says and /openapi.json describes."""
    assert shutil.which("curl"), "curl is needed to test the page about curl"
    assert len(commands()) == len(ANSWERS)
    checked = 0
    async with agents_in(tmp_path / "data") as agents:
        agent = await agents.alone("a", gossip_key=GOSSIP_KEY)
        document = (await agent.call("GET", "/openapi.json"))[1]
        for command, beginning in zip(commands(), ANSWERS, strict=True):
            output = await shell(pointed_at(command, urlsplit(agent.agent.url).netloc), tmp_path)
            body, status, media = output.rsplit(b"\n#", 2)
            assert body.startswith(beginning), (command, output)
            if media == b"application/json":
                method, path = request_of(command)
                assert (
                    answer_faults(document, method, path, int(status), media.decode(), json.loads(body)) == []
                )
                checked += 1
    assert checked > 20
    assert (tmp_path / "orders.arrows").read_bytes().startswith(b"\xff\xff\xff\xff")


def request_of(command: str) -> tuple[str, str]:
    """Method and path of the request that a curl command makes."""
    words = shlex.split(command.partition(" | ")[2] or command)
    target = next(word for word in words if word.startswith("http://"))
    posts = {"-d", "--json", "--data-binary"} & set(words)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if posts else "GET"
    return method, urlsplit(target).path


SLIPS = {
    "form": ('-d \'{"records":[{"value":1}]}\'', "ambiguous-body", "--json"),
    "unwrapped": ('--json \'{"user":"ann"}\'', "bad-request", "records"),
    "lines as a form": ("-d @lines", "ambiguous-body", "x-ndjson"),
    "a form with a file": ("-F file=@page.txt", "ambiguous-body", "--data-binary"),
    "upload": ("-T page.txt", "method-not-allowed", "--data-binary"),
    "missing file": ("--data-binary @/dev/null", "bad-request", "empty"),
    "no partition": ("-G -d offset=1", "bad-request", "partitions/0/records"),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
async def test_curls_slips(slip: tuple[str, str, str], tmp_path: pathlib.Path) -> None:
    """What curl users get wrong stores nothing and is told what to type instead."""
    arguments, code, says = slip
    (tmp_path / "page.txt").write_text("text")
    (tmp_path / "lines").write_text('{"n":1}\n{"n":2}\n')
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        url = f"http://127.0.0.1:{agent.port}/v1/topics/t/records"
        output = await shell(f"curl -sS --noproxy '*' {url} {arguments}", tmp_path)
        assert f'"code":"{code}"'.encode() in output
        assert says.encode() in output
        assert agent.broker.cluster.stored() == 0


async def test_a_large_upload_by_curl(tmp_path: pathlib.Path) -> None:
    """curl asks before it sends a large body (Expect: 100-continue); streams of any length arrive."""
    lines = b"".join(b'{"n":%d}\n' % number for number in range(300_000))
    (tmp_path / "lines").write_bytes(lines)
    async with one_agent() as agent:
        url = f"http://127.0.0.1:{agent.port}/v1/topics/t/records"
        command = (
            f"curl -sS --noproxy '*' {url} -H 'Content-Type: application/x-ndjson' -H Expect:100-continue"
        )
        output = await shell(f"{command} --data-binary @lines", tmp_path)
        assert output == b'{"count":300000,"appended":[{"partition":0,"base_offset":0,"count":300000}]}\n'
        piped = await shell(f"cat lines | {command} -T - -X POST", tmp_path)
        assert piped == b'{"count":300000,"appended":[{"partition":0,"base_offset":300000,"count":300000}]}\n'


def test_the_limits_on_the_page() -> None:
    """The numbers of the page are those of the server."""
    limits: Any = HttpLimits()
    text = " ".join(PAGE.read_text().split())
    for sentence in (
        f"{limits.connections:,} connections", f"{limits.requests:,} appends and reads",
        f"{limits.bytes_in_flight // MIB} MiB of bodies", f"{limits.answer_bytes // MIB} MiB of them answers",
        f"end one at {limits.answer_bytes // ANSWER_SHARE // MIB} MiB",
        f"of up to {EMBEDDED_BYTES_MAX // 1024} KiB",
        f"{limits.waits:,} waiting requests",
        f"{limits.request_line_bytes:,} bytes", f"{limits.header_count} headers",
        f"within {limits.idle_ms // 1000} s",
        f"nothing for {limits.body_stall_ms // 1000} s", f"nothing for {limits.send_stall_ms // 1000} s",
        f"chunks of about {limits.chunk_bytes // 1024} KiB", f"at most {limits.body_bytes // MIB} MiB",
        f"at most {limits.read_bytes // MIB} MiB", f"at most {limits.wait_ms // 1000}s",
    ):  # fmt: skip
        assert sentence in text, sentence
