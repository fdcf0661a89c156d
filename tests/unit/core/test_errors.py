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


@pytest.mark.parametrize(
    ("error", "base"), [(UnknownServiceError("db-1"), KeyError), (DuplicateServiceError("db-1"), ValueError)]
)
def test_an_error_about_a_service_has_its_id_and_can_be_caught_as_a_built_in_one(
    error: UnknownServiceError | DuplicateServiceError, base: type[Exception]
) -> None:
    assert isinstance(error, base)
    assert (error.service_id, "'db-1'" in str(error)) == ("db-1", True)
    assert not str(error).startswith(('"', "'")), "the text is not the repr of the argument"
    assert issubclass(InvalidValueError, ValueError)


ERROR_CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SvcnodeError)]


@pytest.mark.parametrize("error_class", [one for one in ERROR_CLASSES if one not in (OptionError, ControlError)])
def test_no_error_contains_a_secret(error_class: type[SvcnodeError]) -> None:
    register_secret("hunter2")
    error = error_class("wrong: hunter2")
    assert "wrong: ***" in str(error)
    assert "hunter2" not in repr(error)
    assert "hunter2" not in repr(error.args)


def test_no_refusal_of_the_control_socket_or_of_an_option_contains_a_secret() -> None:
    register_secret("hunter2")
    refusal = ControlError(400, "wrong: hunter2", pointer="/probe")
    assert (refusal.status, refusal.pointer, str(refusal)) == (400, "/probe", "wrong: ***")
    option = OptionError("bearer", "wrong: hunter2")
    assert (option.option, option.text, str(option)) == ("bearer", "wrong: ***", "bearer: wrong: ***")
    assert "hunter2" not in repr(refusal) + repr(refusal.args) + repr(option)


def test_only_a_keyboard_interrupt_on_the_main_thread_is_a_ctrl_c() -> None:
    assert is_user_interrupt(KeyboardInterrupt())
    assert not is_user_interrupt(SystemExit())
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(is_user_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join(60.0)
    assert results == [False]


def test_an_error_is_shown_with_those_that_were_found_with_it_and_very_many_are_counted() -> None:
    first, second = ConfigError("one"), ConfigError("two")
    first.others = (second,)
    assert error_lines(first) == ["one", "two"]
    assert error_lines(ControlError(400, "one", others=("two",))) == ["one", "two"]
    assert error_lines(InvalidValueError("one")) == ["one"]
    assert len(error_lines(ControlError(400, "one", others=("other",) * (MAX_SHOWN_ERRORS - 1)))) == MAX_SHOWN_ERRORS
    *shown, rest = error_lines(ControlError(400, "one", others=("other",) * MAX_SHOWN_ERRORS))
    assert len(shown) == MAX_SHOWN_ERRORS
    assert str(MAX_SHOWN_ERRORS + 1) in rest
