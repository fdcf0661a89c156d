"""svcnode: a validator-service node that answers for its health with evidence, not claims."""

from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import (
    ClientError,
    ConfigError,
    ControlError,
    ControlUnreachableError,
    DuplicateServiceError,
    InvalidValueError,
    ListenError,
    NodeFailedError,
    OptionError,
    ProbeError,
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryRestoredError,
    RegistryUnreachableError,
    ServiceNotFoundError,
    StoreError,
    SvcnodeError,
    UnexpectedResponseError,
    UnknownOptionError,
    UnknownServiceError,
    UnreachableError,
    VersionIgnoredError,
    VersionNotFoundError,
)
from svcnode.core.model import (
    Change,
    ChangeKind,
    Health,
    Identity,
    Impact,
    Outcome,
    Service,
    ServiceState,
    Status,
    Verdict,
)
from svcnode.node.node_state import Handle
from svcnode.probes.base import Probe
from svcnode.version import __version__

if TYPE_CHECKING:
    from svcnode.agent.embed.asgi import asgi
    from svcnode.agent.embed.collector import prometheus_collector
    from svcnode.agent.embed.node import Node
    from svcnode.agent.embed.options import OperatorOptions
    from svcnode.agent.embed.wsgi import wsgi
    from svcnode.client import AsyncClient, BackingService, Client

__all__ = [
    "AsyncClient",
    "BackingService",
    "Change",
    "ChangeKind",
    "Client",
    "ClientError",
    "ConfigError",
    "ControlError",
    "ControlUnreachableError",
    "DuplicateServiceError",
    "Handle",
    "Health",
    "Identity",
    "Impact",
    "InvalidValueError",
    "ListenError",
    "Node",
    "NodeFailedError",
    "OperatorOptions",
    "OptionError",
    "Outcome",
    "Probe",
    "ProbeError",
    "ReasonCode",
    "RegistryCompactedError",
    "RegistryError",
    "RegistryFullError",
    "RegistryLeaseLostError",
    "RegistryLoginError",
    "RegistryPermissionError",
    "RegistryRestoredError",
    "RegistryUnreachableError",
    "Service",
    "ServiceNotFoundError",
    "ServiceState",
    "Status",
    "StoreError",
    "SvcnodeError",
    "UnexpectedResponseError",
    "UnknownOptionError",
    "UnknownServiceError",
    "UnreachableError",
    "Verdict",
    "VersionIgnoredError",
    "VersionNotFoundError",
    "__version__",
    "asgi",
    "prometheus_collector",
    "wsgi",
]


# Loaded on first use: the clients take several times as long to import as all others, and `svcnode serve` needs none.
_LOADED_LATE = {
    "AsyncClient": "svcnode.client",
    "BackingService": "svcnode.client",
    "Client": "svcnode.client",
    "Node": "svcnode.agent.embed.node",
    "OperatorOptions": "svcnode.agent.embed.options",
    "asgi": "svcnode.agent.embed.asgi",
    "prometheus_collector": "svcnode.agent.embed.collector",
    "wsgi": "svcnode.agent.embed.wsgi",
}


def __getattr__(name: str) -> object:
    if name in _LOADED_LATE:
        from importlib import import_module

        return getattr(import_module(_LOADED_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
