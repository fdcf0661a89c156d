"""Every error svcnode raises on purpose.

SvcnodeError
├── InvalidValueError       a value that can never be right: an id, a version, a duration
├── UnknownServiceError     no service is registered under that id
├── DuplicateServiceError   a service is registered under that id already
├── ConfigError             a configuration that cannot be used; says where and how to mend it
├── ProbeError              a probe that cannot be made from its URL and options
│   └── OptionError         one of its options; says which
├── ClientError             a node that was asked, and did not answer as one
│   ├── UnreachableError        nobody answers there, or not in time
│   ├── VersionNotFoundError    it does not have the version of the interface that was asked for
│   ├── ServiceNotFoundError    it has no service under that id
│   ├── NodeFailedError         it says that it failed inside (500)
│   └── UnexpectedResponseError   something else answers there; says what
├── ListenError             an address that cannot be listened on
└── StoreError              the node's own store cannot be used

A Ctrl-C, told from what somebody's code raised.
"""

from __future__ import annotations

import threading

from svcnode.core.redaction import redacted


class SvcnodeError(Exception):
    """The root; its text is fit to be shown to a user."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


class InvalidValueError(SvcnodeError, ValueError):
    pass


class UnknownServiceError(SvcnodeError, KeyError):
    def __init__(self, service_id: str) -> None:
        self.service_id = service_id
        super().__init__(f"no service is registered under the id {service_id!r}")

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])


class DuplicateServiceError(SvcnodeError, ValueError):
    def __init__(self, service_id: str) -> None:
        self.service_id = service_id
        super().__init__(f"a service is registered under the id {service_id!r} already; ids are unique")


class ConfigError(SvcnodeError):
    pass


class ProbeError(SvcnodeError):
    pass


class OptionError(ProbeError):
    def __init__(self, option: str, text: str) -> None:
        self.option = option
        self.text = redacted(text)
        super().__init__(f"{option}: {text}")


class ClientError(SvcnodeError):
    pass


class UnreachableError(ClientError):
    pass


class VersionNotFoundError(ClientError):
    pass


class ServiceNotFoundError(ClientError):
    pass


class NodeFailedError(ClientError):
    pass


class UnexpectedResponseError(ClientError):
    pass


class ListenError(SvcnodeError):
    pass


class StoreError(SvcnodeError):
    pass


def is_user_interrupt(exc: BaseException) -> bool:
    """That of a person reaches the main thread only; anywhere else somebody's code has raised it."""
    return isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
