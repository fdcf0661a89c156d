from __future__ import annotations

import pytest

import svcnode
from svcnode.cli import main
from svcnode.core import errors

# What programs may rely on. A name that comes, goes or changes is a line in CHANGELOG.md.
PUBLIC_NAMES = [
    "AsyncClient",
    "BackingService",
    "Change",
    "ChangeKind",
    "Client",
    "ClientError",
    "ConfigError",
    "DuplicateServiceError",
    "Handle",
    "Health",
    "Identity",
    "Impact",
    "InvalidValueError",
    "ListenError",
    "Node",
    "NodeFailedError",
    "UnexpectedResponseError",
    "OptionError",
    "Outcome",
    "Probe",
    "ProbeError",
    "Service",
    "ServiceNotFoundError",
    "ServiceState",
    "Status",
    "StoreError",
    "SvcnodeError",
    "UnknownServiceError",
    "UnreachableError",
    "Verdict",
    "VersionNotFoundError",
    "__version__",
    "asgi",
    "wsgi",
]

# Their fields or members say all there is to say.
SELF_EXPLAINING = {"ChangeKind", "Outcome", "Probe", "Service", "__version__"}


def test_the_public_names_are_exactly_these() -> None:
    assert svcnode.__all__ == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_exists_and_says_what_it_is(name: str) -> None:
    named = getattr(svcnode, name)
    if isinstance(named, type) and issubclass(named, Exception):
        assert name in str(errors.__doc__)
    elif name not in SELF_EXPLAINING:
        assert named.__doc__
        assert not named.__doc__.startswith(f"{name}("), "a dataclass without words shows its signature"


def test_every_error_of_ours_is_caught_as_one() -> None:
    ours = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert {one.__name__ for one in ours} <= set(PUBLIC_NAMES)
    assert all(issubclass(one, svcnode.SvcnodeError) for one in ours)


# ---- the command line, which is public too


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    output = capsys.readouterr()
    assert output.err == ""
    return " ".join(output.out.split())


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version") == f"svcnode {svcnode.__version__}"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_says_what_it_is_and_what_it_can_do(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, flag)
    assert "A validator-service node that answers for its health with evidence, not claims." in text
    assert "serve answer for the node over HTTP" in text
    assert "check-config say whether a configuration can be used" in text


def test_help_on_serve_names_every_option_and_where_else_a_value_may_be_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, "serve", "--help")
    for option in (
        "--config FILE the TOML file; without it SVCNODE_CONFIG, svcnode.toml in this folder, or the embedded default",
        "--listen ADDRESS host:port or unix:/path; may be repeated",
        "--name NAME name of the node",
        '--node-version VERSION version of the node, such as "v1.4.2"',
        "--prefix PREFIX path prefix of the interface (default: /svc); may be repeated",
        '--drain DURATION how long health answers 503 before the end, such as "5s"',
        "--log-level LEVEL debug, info (default), warning or error",
        "--log-format FORMAT auto (default: text on a terminal), text or json",
    ):
        assert option in text
    assert "SIGHUP reads the configuration again, SIGTERM drains and stops." in text
    assert "SVCNODE_<TABLE>_<KEY>" in text
    assert "options win over the environment, and the environment over the file" in text


def test_help_on_check_config_names_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Exit 0 or 2." in said(capsys, "check-config", "--help")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("serv",), "invalid choice: 'serv'"),
        (("serve", "--port", "1"), "unrecognized arguments: --port 1"),
        (("serve", "--listen"), "argument --listen: expected one argument"),
    ],
)
def test_a_command_that_is_not_understood_ends_with_code_2(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.out == ""
