from __future__ import annotations

import pytest

import svcnode
from svcnode import testing
from svcnode.cli import main
from svcnode.core import errors

# The public API. A change of this list needs a line in CHANGELOG.md.
PUBLIC_NAMES = [
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

TESTING_NAMES = ["FakeClock", "assert_health", "assert_status", "run_check", "run_check_async"]

# Their fields or members need no docstring.
WITHOUT_DOCSTRING = {"ChangeKind", "Outcome", "ReasonCode", "Service", "__version__"}


def test_the_public_names_are_exactly_these() -> None:
    assert svcnode.__all__ == PUBLIC_NAMES
    assert testing.__all__ == TESTING_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_exists_and_has_a_docstring(name: str) -> None:
    value = getattr(svcnode, name)
    if isinstance(value, type) and issubclass(value, Exception):
        assert name in str(errors.__doc__)
    elif name not in WITHOUT_DOCSTRING:
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}("), "the default docstring of a dataclass is its signature"


@pytest.mark.parametrize("name", TESTING_NAMES)
def test_a_helper_for_tests_exists_and_has_a_docstring(name: str) -> None:
    assert getattr(testing, name).__doc__


def test_every_error_is_public_and_derives_from_svcnode_error() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert {one.__name__ for one in classes} <= set(PUBLIC_NAMES)
    assert all(issubclass(one, svcnode.SvcnodeError) for one in classes)


# ---- the command line


def stdout_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    output = capsys.readouterr()
    assert output.err == ""
    return " ".join(output.out.split())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert stdout_of(capsys, "--version").startswith(f"svcnode {svcnode.__version__} (interface v0.0.1, ")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = stdout_of(capsys, flag)
    assert {"serve", "check-config", "status", "watch", "conform"} <= set(text.split())


def test_help_of_serve_lists_every_option_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    text = stdout_of(capsys, "serve", "--help")
    for option in (
        "--config FILE",
        "--listen ADDRESS",
        "--name NAME",
        "--node-version VERSION",
        "--prefix PREFIX",
        "--drain DURATION",
        "--log-level LEVEL",
        "--log-format FORMAT",
        "SIGHUP",
        "SIGTERM",
        "SVCNODE_<TABLE>_<KEY>",
    ):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "COMMAND"),
        (("serv",), '"serv"'),
        (("serve", "--port", "1"), "--port 1"),
        (("serve", "--listen"), "--listen"),
    ],
)
def test_an_invalid_command_line_exits_with_code_2(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert error in output.err
    assert output.out == ""
