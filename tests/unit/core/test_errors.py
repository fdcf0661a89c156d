"""Exception classes: their tree, attributes and redaction."""

from __future__ import annotations

import re
import threading

import pytest

from svcnode.core import errors
from svcnode.core.errors import (
    MAX_SHOWN_ERRORS,
    ConfigError,
    ControlError,
    DuplicateServiceError,
    InvalidValueError,
    OptionError,
    ProbeError,
    SvcnodeError,
    UnknownServiceError,
    error_lines,
    is_user_interrupt,
)
from svcnode.core.redaction import register_secret


def test_the_tree_in_the_docstring_lists_every_class() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^[├└│][── ]+(?:[├└]── )?(\w+)", errors.__doc__, re.MULTILINE)
    defined = [
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, SvcnodeError)
    ]
    assert ["SvcnodeError", *drawn] == defined


def test_every_error_derives_from_svcnode_error() -> None:
    assert InvalidValueError.__mro__[1] is SvcnodeError
    assert issubclass(SvcnodeError, Exception)


def test_an_unknown_service_can_be_caught_as_a_key_error() -> None:
    with pytest.raises(KeyError) as caught:
        raise UnknownServiceError("db-1")
    assert "'db-1'" in str(caught.value)
    assert not str(caught.value).startswith(('"', "'")), "the text is not the repr of the argument"


def test_a_duplicate_service_can_be_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError, match="'db-1'") as caught:
        raise DuplicateServiceError("db-1")
    assert isinstance(caught.value, SvcnodeError)


@pytest.mark.parametrize("error", [UnknownServiceError("db-1"), DuplicateServiceError("db-1")])
def test_an_error_about_a_service_has_its_id(error: UnknownServiceError | DuplicateServiceError) -> None:
    assert error.service_id == "db-1"


def test_an_invalid_value_can_be_caught_as_a_value_error() -> None:
    assert issubclass(InvalidValueError, ValueError)


def test_an_option_error_has_the_option_and_the_text() -> None:
    error = OptionError("bearer", "is empty")
    assert (error.option, error.text, str(error)) == ("bearer", "is empty", "bearer: is empty")
    assert isinstance(error, ProbeError)


ERROR_CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SvcnodeError)]


@pytest.mark.parametrize("error_class", [one for one in ERROR_CLASSES if one not in (OptionError, ControlError)])
def test_no_error_contains_a_secret(error_class: type[SvcnodeError]) -> None:
    register_secret("hunter2")
    error = error_class("wrong: hunter2")
    assert "wrong: ***" in str(error)
    assert "hunter2" not in repr(error)
    assert "hunter2" not in repr(error.args)


def test_no_refusal_of_the_control_socket_contains_a_secret() -> None:
    register_secret("hunter2")
    error = ControlError(400, "wrong: hunter2", pointer="/probe")
    assert (error.status, error.pointer, str(error)) == (400, "/probe", "wrong: ***")
    assert "hunter2" not in repr(error) + repr(error.args)


def test_no_option_error_contains_a_secret() -> None:
    register_secret("hunter2")
    error = OptionError("bearer", "wrong: hunter2")
    assert error.text == "wrong: ***"
    assert "hunter2" not in repr(error) + str(error)


# ---- Ctrl-C


def test_a_keyboard_interrupt_on_the_main_thread_is_a_ctrl_c() -> None:
    assert is_user_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize("other", [ValueError(), SystemExit(), GeneratorExit()])
def test_no_other_exception_is_a_ctrl_c(other: BaseException) -> None:
    assert not is_user_interrupt(other)


def test_a_keyboard_interrupt_on_another_thread_is_not_a_ctrl_c() -> None:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(is_user_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join(30.0)
    assert results == [False]


def test_an_error_is_shown_with_those_that_were_found_with_it() -> None:
    first, second = ConfigError("one"), ConfigError("two")
    first.others = (second,)
    assert error_lines(first) == ["one", "two"]
    assert error_lines(ControlError(400, "one", others=("two",))) == ["one", "two"]
    assert error_lines(InvalidValueError("one")) == ["one"]


def test_very_many_errors_are_counted() -> None:
    many = ControlError(400, "one", others=("other",) * MAX_SHOWN_ERRORS)
    *shown, rest = error_lines(many)
    assert len(shown) == MAX_SHOWN_ERRORS
    assert str(MAX_SHOWN_ERRORS + 1) in rest
