"""The names that users import. Importing this package is cheap: each is loaded at its first use (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # `_EXPORTS` for type checkers and editors
    from shoal.client.async_client import AsyncClient as AsyncClient
    from shoal.client.blocking import Client as Client
    from shoal.client.blocking import Consumer as Consumer
    from shoal.client.blocking import Producer as Producer
    from shoal.client.blocking import Subscription as Subscription
    from shoal.client.blocking_table import Table as Table
    from shoal.client.blocking_table import TableWatch as TableWatch
    from shoal.client.consume.consumer import AsyncConsumer as AsyncConsumer
    from shoal.client.consume.fetch import Fetched as Fetched
    from shoal.client.consume.fetch import PartitionOffsets as PartitionOffsets
    from shoal.client.consume.record import Record as Record
    from shoal.client.http.requests import ClientConfig as ClientConfig
    from shoal.client.http.requests import Unreachable as Unreachable
    from shoal.client.http.routes import RetryPolicy as RetryPolicy
    from shoal.client.produce.batcher import BatchingConfig as BatchingConfig
    from shoal.client.produce.delivery import Delivery as Delivery
    from shoal.client.produce.delivery import Place as Place
    from shoal.client.produce.producer import AsyncProducer as AsyncProducer
    from shoal.client.produce.producer import Delivered as Delivered
    from shoal.client.produce.producer import ProduceFailed as ProduceFailed
    from shoal.client.subscribe.message import GroupMessage as GroupMessage
    from shoal.client.subscribe.message import MessageBatch as MessageBatch
    from shoal.client.subscribe.subscription import AsyncSubscription as AsyncSubscription
    from shoal.client.tables.entries import TableChange as TableChange
    from shoal.client.tables.entries import TableChangeKind as TableChangeKind
    from shoal.client.tables.entries import TableEntry as TableEntry
    from shoal.client.tables.table import AsyncTable as AsyncTable
    from shoal.client.tables.watch import AsyncTableWatch as AsyncTableWatch
    from shoal.errors import BufferFull as BufferFull
    from shoal.errors import ClientClosed as ClientClosed
    from shoal.errors import ClientError as ClientError
    from shoal.errors import ClientForked as ClientForked
    from shoal.errors import ShoalError as ShoalError
    from shoal.format.batch import DEFAULT_SCHEMA as DEFAULT_SCHEMA
    from shoal.format.batch import BatchError as BatchError

__version__: Final = "0.1.0"

_EXPORTS: Final = {
    "shoal.client.async_client": "AsyncClient",
    "shoal.client.blocking": "Client Consumer Producer Subscription",
    "shoal.client.blocking_table": "Table TableWatch",
    "shoal.client.consume.consumer": "AsyncConsumer",
    "shoal.client.consume.fetch": "Fetched PartitionOffsets",
    "shoal.client.consume.record": "Record",
    "shoal.client.http.requests": "ClientConfig Unreachable",
    "shoal.client.http.routes": "RetryPolicy",
    "shoal.client.produce.batcher": "BatchingConfig",
    "shoal.client.produce.delivery": "Delivery Place",
    "shoal.client.produce.producer": "AsyncProducer Delivered ProduceFailed",
    "shoal.client.subscribe.message": "GroupMessage MessageBatch",
    "shoal.client.subscribe.subscription": "AsyncSubscription",
    "shoal.client.tables.entries": "TableChange TableChangeKind TableEntry",
    "shoal.client.tables.table": "AsyncTable",
    "shoal.client.tables.watch": "AsyncTableWatch",
    "shoal.errors": "BufferFull ClientClosed ClientError ClientForked ShoalError",
    "shoal.format.batch": "BatchError DEFAULT_SCHEMA",
}
_HOMES: Final = {name: module for module, names in _EXPORTS.items() for name in names.split()}
"""Where each name is defined."""

if not TYPE_CHECKING:  # a checker would take any name for one that is there
    __all__ = [*_HOMES, "__version__"]

    def __getattr__(name: str) -> Any:
        """Load `name` from the module that defines it."""
        if name not in _HOMES:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
