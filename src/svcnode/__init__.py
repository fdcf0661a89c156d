"""svcnode: a validator-service node that answers for its health with evidence, not claims."""

from svcnode.core.errors import (
    ConfigError,
    DuplicateServiceError,
    InvalidValueError,
    ListenError,
    OptionError,
    ProbeError,
    StoreError,
    SvcnodeError,
    UnknownServiceError,
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
from svcnode.node import Handle, Node
from svcnode.probes import Probe
from svcnode.version import __version__
from svcnode.web.asgi import asgi
from svcnode.web.wsgi import wsgi

__all__ = [
    "Change",
    "ChangeKind",
    "ConfigError",
    "DuplicateServiceError",
    "Handle",
    "Health",
    "Identity",
    "Impact",
    "InvalidValueError",
    "ListenError",
    "Node",
    "OptionError",
    "Outcome",
    "Probe",
    "ProbeError",
    "Service",
    "ServiceState",
    "Status",
    "StoreError",
    "SvcnodeError",
    "UnknownServiceError",
    "Verdict",
    "__version__",
    "asgi",
    "wsgi",
]
