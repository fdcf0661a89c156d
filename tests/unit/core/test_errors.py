"""Errors are for people to read, and for programs to catch by what they are."""

from __future__ import annotations

import re

import pytest

from svcnode.core import errors
from svcnode.core.errors import (
    DuplicateServiceError,
    InvalidValueError,
    OptionError,
    ProbeError,
    SvcnodeError,
    UnknownServiceError,
)
from svcnode.core.redaction import register_secret


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^[├└│][── ]+(?:[├└]── )?(\w+)", errors.__doc__, re.MULTILINE)
    made = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, SvcnodeError)]
    assert ["SvcnodeError", *drawn] == made


def test_every_error_has_one_root() -> None:
    assert InvalidValueError.__mro__[1] is SvcnodeError
    assert issubclass(SvcnodeError, Exception)


def test_an_unknown_service_is_named_and_can_be_caught_as_a_missing_key() -> None:
    with pytest.raises(KeyError) as caught:
        raise UnknownServiceError("db-1")
    assert str(caught.value) == "no service is registered under the id 'db-1'"


def test_a_duplicate_service_is_named_and_can_be_caught_as_a_wrong_value() -> None:
    with pytest.raises(ValueError, match="registered under the id 'db-1' already; ids are unique") as caught:
        raise DuplicateServiceError("db-1")
    assert isinstance(caught.value, SvcnodeError)


@pytest.mark.parametrize("error", [UnknownServiceError("db-1"), DuplicateServiceError("db-1")])
def test_an_error_knows_the_id_it_is_about(error: UnknownServiceError | DuplicateServiceError) -> None:
    assert error.service_id == "db-1"


def test_an_invalid_value_can_be_caught_as_a_wrong_value() -> None:
    assert issubclass(InvalidValueError, ValueError)


def test_an_error_of_an_option_says_which_and_why() -> None:
    error = OptionError("bearer", "is empty")
    assert (error.option, error.text, str(error)) == ("bearer", "is empty", "bearer: is empty")
    assert isinstance(error, ProbeError)


KINDS_OF_ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SvcnodeError)]


@pytest.mark.parametrize("kind", [one for one in KINDS_OF_ERRORS if one is not OptionError])
def test_no_error_holds_a_secret(kind: type[SvcnodeError]) -> None:
    """Nor does the cause of another one, which a traceback shows as well."""
    register_secret("hunter2")
    error = kind("wrong: hunter2")
    assert "wrong: ***" in str(error)
    assert "hunter2" not in repr(error)
    assert "hunter2" not in repr(error.args)


def test_no_error_of_an_option_holds_a_secret() -> None:
    register_secret("hunter2")
    error = OptionError("bearer", "wrong: hunter2")
    assert error.text == "wrong: ***"
    assert "hunter2" not in repr(error) + str(error)
