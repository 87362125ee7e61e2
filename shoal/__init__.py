"""What users import. Importing this package is cheap: a name is loaded when it is first used (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = [
    "DEFAULT_SCHEMA",
    "AsyncClient",
    "BatchError",
    "BatchingConfig",
    "BufferFull",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientError",
    "ClientForked",
    "ProduceFailed",
    "ShoalError",
    "Unreachable",
    "__version__",
]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "AsyncClient": "shoal.aio",
    "BatchingConfig": "shoal.batching",
    "BufferFull": "shoal.errors",
    "Client": "shoal.blocking",
    "ClientClosed": "shoal.errors",
    "ClientConfig": "shoal.aio_cluster",
    "ClientError": "shoal.errors",
    "ClientForked": "shoal.errors",
    "ProduceFailed": "shoal.aio_producer",
    "Unreachable": "shoal.aio_cluster",
    "DEFAULT_SCHEMA": "shoal.batch",
    "BatchError": "shoal.batch",
    "ShoalError": "shoal.errors",
}


def __getattr__(name: str) -> Any:
    """Load `name` from the module that defines it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
