"""Every error that svcnode raises on purpose.

SvcnodeError
├── InvalidValueError       an invalid value: an id, a version, a duration
│   └── UnknownOptionError  an unknown option of a service
├── UnknownServiceError     no service with this id is registered
├── DuplicateServiceError   a service with this id is registered already
├── ConfigError             an invalid configuration; `key`, `file` and `line` say where
├── ProbeError              an invalid probe URL or option
│   └── OptionError         an invalid option; `option` names it
├── ClientError             a request to a node failed; `code`, `problem` and `url` say why and where
│   ├── UnreachableError        no connection, or no response in time
│   ├── VersionNotFoundError    the node does not support the requested version of the interface
│   ├── VersionIgnoredError     the node answered with another version than the requested one
│   ├── ServiceNotFoundError    the node has no service with this id
│   ├── NodeFailedError         the node answered 500
│   └── UnexpectedResponseError   the response is not one of the interface
├── ControlError            the control socket or the registry refuses a request; `status` and `pointer` say why
├── ControlUnreachableError   the control socket of a node cannot be used
├── RegistryError           a request to the shared registry (etcd) failed
│   ├── RegistryUnreachableError   no endpoint gives a response, or the cluster has no leader
│   ├── RegistryLoginError         a wrong or missing user name or password
│   ├── RegistryPermissionError    the user may not read or write the keys
│   ├── RegistryFullError          the registry has no space left; it accepts only reads
│   ├── RegistryCompactedError     the registry no longer has the revision
│   ├── RegistryLeaseLostError     the lease is over
│   └── RegistryRestoredError      the registry has other data than before, for example from a snapshot
├── ListenError             an address cannot be bound
└── StoreError              the node's own store cannot be used
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.redaction import redacted

if TYPE_CHECKING:
    from pathlib import Path


MAX_SHOWN_ERRORS = 100  # of one configuration


class SvcnodeError(Exception):
    """The root. The text is written for users and contains no registered secret."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))

    @property
    def texts(self) -> tuple[str, ...]:
        """Its text, and those of the errors that were found with it."""
        return (str(self),)


class InvalidValueError(SvcnodeError, ValueError):
    pass


class UnknownOptionError(InvalidValueError, TypeError):  # as for an unexpected keyword argument
    pass


class UnknownServiceError(SvcnodeError, KeyError):
    def __init__(self, service_id: str) -> None:
        self.service_id = service_id
        super().__init__(f"unknown service id {service_id!r}")

    def __str__(self) -> str:  # KeyError shows the repr of its argument
        return str(self.args[0])


class DuplicateServiceError(SvcnodeError, ValueError):
    def __init__(self, service_id: str) -> None:
        self.service_id = service_id
        super().__init__(f"service id {service_id!r} is already registered; ids must be unique")


class ConfigError(SvcnodeError):
    def __init__(
        self,
        text: str,
        *,
        key: str | None = None,
        path: tuple[str | int, ...] = (),
        file: Path | None = None,
        line: int | None = None,
    ) -> None:
        self.key = key  # such as services.db.probe
        self.path = path  # such as ("services", 0, "probe")
        self.file = file
        self.line = line
        self.others: tuple[ConfigError, ...] = ()  # the other errors of the same configuration
        super().__init__(text)

    @property
    def texts(self) -> tuple[str, ...]:
        return (str(self), *map(str, self.others))


class ProbeError(SvcnodeError):
    def __init__(self, text: str) -> None:
        self.others: tuple[ProbeError, ...] = ()  # the other errors of the same probe
        super().__init__(text)


class OptionError(ProbeError):
    def __init__(self, option: str | int, text: str) -> None:
        self.option = option  # its name, or the index of a value in a list
        self.text = redacted(text)
        super().__init__(f"{option}: {text}")


class ClientError(SvcnodeError):
    def __init__(self, problem: str, *, url: str = "", hint: str = "", code: ReasonCode = ReasonCode.OTHER) -> None:
        self.problem = redacted(problem)
        self.url = redacted(url)  # of the request
        self.code = code
        super().__init__(f"{problem}{f': {url}' if url else ''}{f'; {hint}' if hint else ''}")


class UnreachableError(ClientError):
    pass


class VersionNotFoundError(ClientError):
    pass


class VersionIgnoredError(ClientError):
    pass


class ServiceNotFoundError(ClientError):
    pass


class NodeFailedError(ClientError):
    pass


class UnexpectedResponseError(ClientError):
    pass


class ControlError(SvcnodeError):
    def __init__(self, status: int, text: str, *, pointer: str | None = None, others: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.status = status  # of HTTP
        self.others = others  # the texts of the errors that were found with it
        self.pointer = pointer  # JSON pointer (RFC 6901) to the field of the body that is wrong

    @property
    def texts(self) -> tuple[str, ...]:
        return (str(self), *self.others)


class ControlUnreachableError(SvcnodeError):
    pass


class RegistryError(SvcnodeError):
    pass


class RegistryUnreachableError(RegistryError):
    pass


class RegistryLoginError(RegistryError):
    pass


class RegistryPermissionError(RegistryError):
    pass


class RegistryFullError(RegistryError):
    pass


class RegistryCompactedError(RegistryError):
    pass


class RegistryLeaseLostError(RegistryError):
    pass


class RegistryRestoredError(RegistryError):
    pass


class ListenError(SvcnodeError):
    pass


class StoreError(SvcnodeError):
    pass


def error_lines(exc: SvcnodeError) -> list[str]:
    """The texts of an error, one to a line; of very many, the first ones."""
    texts, count = exc.texts[:MAX_SHOWN_ERRORS], len(exc.texts)
    return [
        *texts,
        *([f"only the first {MAX_SHOWN_ERRORS} of {count} errors are shown"] if count > MAX_SHOWN_ERRORS else []),
    ]


def is_user_interrupt(exc: BaseException) -> bool:
    """Whether this is a real Ctrl-C: Python raises it on the main thread only. On other threads, code has raised it."""
    return isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
