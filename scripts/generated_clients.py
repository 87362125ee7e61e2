"""Generates clients from /openapi.json with the generators that people use, and uses them against an agent.

Needs the package index (openapi-python-client in an environment of its own) and, for TypeScript, npm: so it
is no part of scripts/test, whose tests/agent/test_openapi.py keeps what these generators stumbled over.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 60.0
USE = """
import sys
from shoal_client import Client
from shoal_client.api.default import (
    change_topic, create_topic, delete_topic, describe_topic, list_topics, produce, read_merged,
    read_partition,
)
from shoal_client.models import NewRecords, Problem, Retention, TopicChanges, TopicSettings

client = Client(base_url=sys.argv[1])
settings = TopicSettings(partitions=2, replication_factor=1, retention=Retention(age="7d"))
assert create_topic.sync(client=client, topic="made", body=settings).settings.partitions == 2
assert list_topics.sync(client=client).topics[0].replication_factor == 1
records = NewRecords.from_dict({"records": [{"key": "k", "value": {"a": 1}}, {"value": "text"}]})
assert produce.sync(client=client, topic="made", body=records).count == 2
read = [read_partition.sync(client=client, topic="made", partition=p).records for p in range(2)]
assert {record.value for records in read for record in records} == {"text", '{"a":1}'}
assert len(read_merged.sync(client=client, topic="made").records) == 2
changed = change_topic.sync(client=client, topic="made", body=TopicChanges(retention=Retention(age="1d")))
assert changed.settings.retention.age == "1d"
assert delete_topic.sync_detailed(client=client, topic="made").status_code == 204
assert isinstance(describe_topic.sync(client=client, topic="made"), Problem)
"""


def main() -> int:
    """Exit status 0 when every client works."""
    with tempfile.TemporaryDirectory(prefix="shoal-clients-") as name:
        directory = Path(name)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        agent = subprocess.Popen(
            [sys.executable, "-m", "shoal.agent", "dev", "--http-port", str(port)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            description = directory / "openapi.json"
            description.write_bytes(_described(url))
            _python(directory, description, url)
            _typescript(directory, description)
        finally:
            agent.terminate()
            agent.wait()
    return 0


def _described(url: str) -> bytes:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).close()  # noqa: S310
            with urllib.request.urlopen(f"{url}/openapi.json", timeout=5) as answer:  # noqa: S310
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _python(directory: Path, description: Path, url: str) -> None:
    environment = directory / "environment"
    _run([sys.executable, "-m", "venv", str(environment)])
    _run([str(environment / "bin" / "pip"), "install", "--quiet", "openapi-python-client"])
    made = directory / "python"
    generator = str(environment / "bin" / "openapi-python-client")
    output = _run([generator, "generate", "--path", str(description), "--output-path", str(made)])
    assert "Failure to process schema" not in output, output
    _run([str(environment / "bin" / "python"), "-c", USE, url], directory=made)
    print("openapi-python-client: generated and used")


def _typescript(directory: Path, description: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        print("openapi-typescript: not tried, npm is missing")
        return
    _run([npm, "init", "--yes"], directory=directory)
    _run([npm, "install", "--silent", "openapi-typescript", "typescript"], directory=directory)
    tools = directory / "node_modules" / ".bin"
    _run([str(tools / "openapi-typescript"), str(description), "-o", "api.ts"], directory=directory)
    _run([str(tools / "tsc"), "--noEmit", "--strict", "api.ts"], directory=directory)
    print("openapi-typescript: generated and compiled")


def _run(command: list[str], *, directory: Path | None = None) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
