"""What the rows about Spark stand beside: the same bytes behind a bare file server, in local files, and
sources and sinks that do nothing.

Law of this file: it is imported by Spark's Python workers, so it needs nothing but pyarrow and Shoal's Spark
side. The files hold an agent's own answers, byte for byte; the local reader composes the same columns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from shoal.spark import ShoalDataSource
from shoal.spark.options.read_options import COLUMNS
from shoal.spark.read.fetch import DEFAULT_POLICY, Scan, compose
from shoal.spark.read.plan import OffsetRange

INDEX = "index.json"
HEAD_BYTES_MAX = 64 * 1024
COPIED_HEADERS = (
    "Content-Type", "Shoal-Base-Offset", "Shoal-Next-Offset", "Shoal-High-Watermark",
    "Shoal-Log-Start-Offset",
)  # fmt: skip
ARROW = "application/vnd.apache.arrow.stream"


@dataclasses.dataclass(frozen=True)
class Piece:
    """One answer of an agent, in the file of its partition."""

    partition: int
    offset: int
    position: int
    length: int
    headers: dict[str, str]


def capture(agent: str, topic: str, directory: pathlib.Path) -> list[Piece]:
    """Every answer that Shoal's source gets when it reads the whole topic, in one file a partition."""
    with urllib.request.urlopen(f"{agent}/v1/topics/{topic}/offsets") as answer:  # noqa: S310
        partitions = json.load(answer)["partitions"]
    pieces = []
    for entry in partitions:
        partition, offset = entry["partition"], entry["log_start_offset"]
        with open(directory / f"{partition}.arrows", "wb") as file:
            while offset < entry["high_watermark"]:
                path = f"/v1/topics/{topic}/partitions/{partition}/records"
                query = f"offset={offset}&max_bytes={DEFAULT_POLICY.fetch_bytes}"
                request = urllib.request.Request(f"{agent}{path}?{query}", headers={"Accept": ARROW})  # noqa: S310
                with urllib.request.urlopen(request) as answer:  # noqa: S310
                    headers = {name: answer.headers[name] for name in COPIED_HEADERS}
                    body = answer.read()
                pieces.append(Piece(partition, offset, file.tell(), len(body), headers))
                file.write(body)
                offset = int(headers["Shoal-Next-Offset"])
    (directory / INDEX).write_text(json.dumps([dataclasses.asdict(piece) for piece in pieces]))
    return pieces


def index_of(directory: str) -> list[Piece]:
    return [Piece(**entry) for entry in json.loads((pathlib.Path(directory) / INDEX).read_text())]


class FileServer:
    """Sends the captured answers with sendfile, a thread a connection; what is no read it asks the agent."""

    def __init__(self, directory: pathlib.Path, agent: str) -> None:
        self._files = {
            piece.partition: os.open(directory / f"{piece.partition}.arrows", os.O_RDONLY)
            for piece in index_of(str(directory))
        }
        self._pieces = {(piece.partition, piece.offset): piece for piece in index_of(str(directory))}
        self._agent = agent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Until `close`."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        with connection, contextlib.suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in data:
                    received = connection.recv(HEAD_BYTES_MAX)
                    if not received:
                        return
                    data += received
                head, _, data = data.partition(b"\r\n\r\n")
                self._answer(connection, head.split(b" ", 2)[1].decode())

    def _answer(self, connection: socket.socket, target: str) -> None:
        parts = urlsplit(target)
        steps = parts.path.split("/")
        piece = None
        if steps[-1] == "records":
            piece = self._pieces[int(steps[-2]), int(parse_qs(parts.query)["offset"][0])]
            headers, length = piece.headers, piece.length
        else:
            with urllib.request.urlopen(f"{self._agent}{target}") as answer:  # noqa: S310
                body = answer.read().replace(self._agent.encode(), self.url.encode())
            headers, length = {"Content-Type": "application/json"}, len(body)
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items())]
        connection.sendall("\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode())
        if piece is None:
            connection.sendall(body)
            return
        position, end = piece.position, piece.position + length
        while position < end:
            position += os.sendfile(
                connection.fileno(), self._files[piece.partition], position, end - position
            )


@dataclasses.dataclass(frozen=True)
class FilesPartition(InputPartition):
    """One task: a partition's file."""

    partition: int


class FilesSource(DataSource):
    """The captured answers, read from local files; columns and batches are those of Shoal's source."""

    @classmethod
    def name(cls) -> str:
        return "captured_files"

    def schema(self) -> StructType:
        return ShoalDataSource({"subscribe": "bench"}).schema()

    def reader(self, schema: StructType) -> FilesReader:
        return FilesReader(self.options["directory"])


class FilesReader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> Sequence[InputPartition]:
        numbers = sorted({piece.partition for piece in index_of(self._directory)})
        return [FilesPartition(number) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesPartition)
        number = partition.partition
        scan = Scan(OffsetRange("bench", number, 0, 0, ()), (), COLUMNS)
        with open(f"{self._directory}/{number}.arrows", "rb", buffering=0) as file:
            for piece in index_of(self._directory):
                if piece.partition != number:
                    continue
                offset = piece.offset
                with pa.ipc.open_stream(pa.py_buffer(file.read(piece.length))) as stream:
                    for batch in stream:
                        if batch.num_rows:
                            yield compose(batch, scan, offset)
                        offset += batch.num_rows


@dataclasses.dataclass(frozen=True)
class EmptyPartition(InputPartition):
    """A task that reads nothing."""

    number: int


class EmptySource(DataSource):
    """A stream that always has a next micro-batch, of so many tasks, without a row in it."""

    @classmethod
    def name(cls) -> str:
        return "empty_stream"

    def schema(self) -> StructType:
        return ShoalDataSource({"subscribe": "bench"}).schema()

    def streamReader(self, schema: StructType) -> EmptyStreamReader:
        return EmptyStreamReader(int(self.options["tasks"]))


class EmptyStreamReader(DataSourceStreamReader):
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._number = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"number": 0}

    def latestOffset(self, *_: Any, **__: Any) -> dict[str, Any]:
        self._number += 1
        return {"number": self._number}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [EmptyPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


class NullSink(DataSource):
    """An Arrow writer that counts the rows and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "null_sink"

    def writer(self, schema: StructType, overwrite: bool) -> NullWriter:
        return NullWriter()


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            assert batch.num_rows >= 0
        return WriterCommitMessage()


def main() -> None:
    """`spark_floors.py serve DIRECTORY AGENT`: prints the server's URL, serves until its input ends."""
    import sys

    server = FileServer(pathlib.Path(sys.argv[2]), sys.argv[3])
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
