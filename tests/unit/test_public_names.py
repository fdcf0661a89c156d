from __future__ import annotations

import pytest

import svcnode
from svcnode import testing
from svcnode.core import errors

# The public API. A change of this list needs a line in CHANGELOG.md.
PUBLIC_NAMES = [
    *("AsyncClient", "BackingService", "Change", "ChangeKind", "Client", "ClientError", "ConfigError"),
    *("ControlError", "ControlUnreachableError", "DuplicateServiceError", "Handle", "Health", "Identity", "Impact"),
    *("InvalidValueError", "ListenError", "Node", "NodeFailedError", "OperatorOptions", "OptionError", "Outcome"),
    *("Probe", "ProbeError", "ReasonCode", "RegistryCompactedError", "RegistryError", "RegistryFullError"),
    *("RegistryLeaseLostError", "RegistryLoginError", "RegistryPermissionError", "RegistryRestoredError"),
    *("RegistryUnreachableError", "Service", "ServiceNotFoundError", "ServiceState", "Status", "StoreError"),
    *("SvcnodeError", "UnexpectedResponseError", "UnknownOptionError", "UnknownServiceError", "UnreachableError"),
    *("Verdict", "VersionIgnoredError", "VersionNotFoundError", "__version__", "asgi", "prometheus_collector"),
    "wsgi",
]

TESTING_NAMES = ["FakeClock", "assert_health", "assert_status", "run_check", "run_check_async"]

# Their fields or members need no docstring.
WITHOUT_DOCSTRING = {"ChangeKind", "Outcome", "ReasonCode", "Service", "__version__"}


def test_the_public_names_are_exactly_these() -> None:
    assert svcnode.__all__ == PUBLIC_NAMES
    assert testing.__all__ == TESTING_NAMES
    assert all(getattr(testing, name).__doc__ for name in TESTING_NAMES)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_exists_and_has_a_docstring(name: str) -> None:
    value = getattr(svcnode, name)
    if isinstance(value, type) and issubclass(value, Exception):
        assert name in str(errors.__doc__)
    elif name not in WITHOUT_DOCSTRING:
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}("), "the default docstring of a dataclass is its signature"


def test_every_error_is_public_and_derives_from_svcnode_error() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert {one.__name__ for one in classes} <= set(PUBLIC_NAMES)
    assert all(issubclass(one, svcnode.SvcnodeError) for one in classes)
