"""The client for any node that implements the interface. Independent of the server."""

from svcnode.client.async_client import AsyncClient
from svcnode.client.client import Client
from svcnode.client.parse import BackingService
from svcnode.core.errors import (
    ClientError,
    NodeFailedError,
    ServiceNotFoundError,
    UnexpectedResponseError,
    UnreachableError,
    VersionIgnoredError,
    VersionNotFoundError,
)
from svcnode.core.model import Health, Identity, Status

__all__ = [
    "AsyncClient",
    "BackingService",
    "Client",
    "ClientError",
    "Health",
    "Identity",
    "NodeFailedError",
    "ServiceNotFoundError",
    "Status",
    "UnexpectedResponseError",
    "UnreachableError",
    "VersionIgnoredError",
    "VersionNotFoundError",
]
