"""What users import. Importing this package is cheap: a name is loaded when it is first used (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # what `_HOMES` says, for those who check and complete
    from shoal.client.async_client import AsyncClient
    from shoal.client.blocking import Client, Consumer, Producer
    from shoal.client.consume.consumer import AsyncConsumer
    from shoal.client.consume.fetch import Fetched, PartitionOffsets
    from shoal.client.consume.record import Record
    from shoal.client.http.requests import ClientConfig, Unreachable
    from shoal.client.http.routes import RetryPolicy
    from shoal.client.produce.batcher import BatchingConfig
    from shoal.client.produce.delivery import Delivery, Place
    from shoal.client.produce.producer import Delivered, ProduceFailed
    from shoal.client.produce.producer import Producer as AsyncProducer
    from shoal.errors import BufferFull, ClientClosed, ClientError, ClientForked, ShoalError
    from shoal.format.batch import DEFAULT_SCHEMA, BatchError

__all__ = [
    "DEFAULT_SCHEMA",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchError",
    "BatchingConfig",
    "BufferFull",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientError",
    "ClientForked",
    "Consumer",
    "Delivered",
    "Delivery",
    "Fetched",
    "PartitionOffsets",
    "Place",
    "ProduceFailed",
    "Producer",
    "Record",
    "RetryPolicy",
    "ShoalError",
    "Unreachable",
    "__version__",
]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "AsyncClient": "shoal.client.async_client",
    "AsyncConsumer": "shoal.client.consume.consumer",
    "AsyncProducer": "shoal.client.produce.producer:Producer",
    "BatchingConfig": "shoal.client.produce.batcher",
    "BufferFull": "shoal.errors",
    "Client": "shoal.client.blocking",
    "ClientClosed": "shoal.errors",
    "ClientConfig": "shoal.client.http.requests",
    "ClientError": "shoal.errors",
    "ClientForked": "shoal.errors",
    "Consumer": "shoal.client.blocking",
    "Delivered": "shoal.client.produce.producer",
    "Delivery": "shoal.client.produce.delivery",
    "Fetched": "shoal.client.consume.fetch",
    "PartitionOffsets": "shoal.client.consume.fetch",
    "Place": "shoal.client.produce.delivery",
    "ProduceFailed": "shoal.client.produce.producer",
    "Producer": "shoal.client.blocking",
    "Record": "shoal.client.consume.record",
    "RetryPolicy": "shoal.client.http.routes",
    "Unreachable": "shoal.client.http.requests",
    "DEFAULT_SCHEMA": "shoal.format.batch",
    "BatchError": "shoal.format.batch",
    "ShoalError": "shoal.errors",
}
"""Where each name is defined; after a colon, what it is called there."""

if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Load `name` from the module that defines it."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        module, _, there = home.partition(":")
        return getattr(import_module(module), there or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
