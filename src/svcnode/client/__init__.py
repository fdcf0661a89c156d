"""ASKS: any node that has this interface, ours or not. Uses nothing of our server."""

from svcnode.client.aio import AsyncClient
from svcnode.client.results import BackingService
from svcnode.client.sync import Client
from svcnode.core.errors import (
    ClientError,
    NodeFailedError,
    NotThisInterfaceError,
    ServiceNotFoundError,
    UnreachableError,
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
    "NotThisInterfaceError",
    "ServiceNotFoundError",
    "Status",
    "UnreachableError",
    "VersionNotFoundError",
]
