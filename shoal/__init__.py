"""What users import. Importing this package is cheap: a name is loaded when it is first used (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # what `_HOMES` says, for those who check and complete
    from shoal.aio import AsyncClient
    from shoal.aio_cluster import ClientConfig, Unreachable
    from shoal.aio_consumer import Fetched, PartitionOffsets
    from shoal.aio_producer import Delivered, ProduceFailed
    from shoal.aio_producer import Producer as AsyncProducer
    from shoal.aio_reading import AsyncConsumer
    from shoal.batch import DEFAULT_SCHEMA, BatchError
    from shoal.batching import BatchingConfig
    from shoal.blocking import Client, Consumer, Producer
    from shoal.client_routing import RetryPolicy
    from shoal.consumed import Record
    from shoal.delivery import Delivery, Place
    from shoal.errors import BufferFull, ClientClosed, ClientError, ClientForked, ShoalError

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
    "AsyncClient": "shoal.aio",
    "AsyncConsumer": "shoal.aio_reading",
    "AsyncProducer": "shoal.aio_producer:Producer",
    "BatchingConfig": "shoal.batching",
    "BufferFull": "shoal.errors",
    "Client": "shoal.blocking",
    "ClientClosed": "shoal.errors",
    "ClientConfig": "shoal.aio_cluster",
    "ClientError": "shoal.errors",
    "ClientForked": "shoal.errors",
    "Consumer": "shoal.blocking",
    "Delivered": "shoal.aio_producer",
    "Delivery": "shoal.delivery",
    "Fetched": "shoal.aio_consumer",
    "PartitionOffsets": "shoal.aio_consumer",
    "Place": "shoal.delivery",
    "ProduceFailed": "shoal.aio_producer",
    "Producer": "shoal.blocking",
    "Record": "shoal.consumed",
    "RetryPolicy": "shoal.client_routing",
    "Unreachable": "shoal.aio_cluster",
    "DEFAULT_SCHEMA": "shoal.batch",
    "BatchError": "shoal.batch",
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
