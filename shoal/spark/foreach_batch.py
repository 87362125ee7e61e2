"""The function for foreachBatch: a query's micro-batches into a topic, each once. So works the mode update.

Spark takes no sink written in Python in that mode. The producer is the query, its epoch the micro-batch, as
with writeStream: a repeated micro-batch finds its chunks stored.
"""

from __future__ import annotations

from typing import Any, Final, SupportsIndex

from shoal.spark.options.errors import SourceError
from shoal.spark.options.write_options import parse_sink_options
from shoal.spark.pyspark_api import connect_session
from shoal.spark.setup import files, zipped
from shoal.spark.ship import shipment

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property of the thread that runs a query."""
NAME_CHARACTERS_MAX: Final = 40
"""With the query's id, of 36 characters, it is within the bound of txnId."""


def batches(
    *,
    topic: str | None = None,
    agent: str | None = None,
    name: str | None = None,
    query_name: str | None = None,
) -> BatchWriter:
    """A function for foreachBatch that writes each micro-batch once, also when the query is killed and
    started again from its checkpoint.

    `topic` None: the frames have a column topic. `name` tells apart several of these functions that one query
    calls for one topic. `query_name` is the query's name: Spark Connect needs it where several queries run in
    a session. Raises SourceError.
    """
    given = {"agent": agent, "topic": topic}
    options = {option: value for option, value in given.items() if value is not None}
    parse_sink_options(options, {})
    if name is not None:
        parse_sink_options({"txnId": name}, {})
        if len(name) > NAME_CHARACTERS_MAX:
            raise SourceError(f"a name has at most {NAME_CHARACTERS_MAX} characters, not {len(name)}")
    return BatchWriter(options, name, query_name)


class BatchWriter(shipment.Shipped):
    """Spark calls it with each micro-batch and its number. Through Connect the server does, in a process that
    gets this Shoal along with the function."""

    def __init__(self, options: dict[str, str], name: str | None, query_name: str | None) -> None:
        self._options = options
        self._name = name
        self._query_name = query_name
        self._session: Any = None  # of the query; only a Connect server's process needs it

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._session = connect_session()

    def __call__(self, frame: Any, batch: int) -> None:
        """Write the frame, as `df.write` does. Raises SourceError where the query cannot be told."""
        query = self._query(frame.sparkSession)
        producer = query if self._name is None else f"{query}/{self._name}"
        options = {**self._options, "txnId": producer, "txnBatch": str(batch)}
        frame.write.format("shoal").options(**options).mode("append").save()

    def _query(self, session: Any) -> str:
        """The query's id, which its checkpoint keeps."""
        context = getattr(session, "sparkContext", None)
        if context is not None:
            query = context.getLocalProperty(QUERY_ID)
            if query is None:
                raise SourceError(
                    "this function is for writeStream.foreachBatch, in the thread that Spark calls it in"
                )
            return str(query)
        session = self._session or session
        active = [query for query in session.streams.active if self._query_name in (None, query.name)]
        if len(active) != 1:
            called = "" if self._query_name is None else f" called {self._query_name!r}"
            raise SourceError(
                f"{len(active)} queries{called} run in this session: give this one .queryName(NAME), and"
                " batches(..., query_name=NAME)"
            )
        return str(active[0].id)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if shipment.received is not None:
            return super().__reduce_ex__(protocol)
        contents = files()
        return shipment.pack(contents, zipped(contents)).around(self, is_for_tasks=False)
