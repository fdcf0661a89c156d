"""The types of the keys: functions that convert a TOML value, each with a JSON Schema, as for the options of probes."""

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.api.spec import PREFIX_PATTERN, parse_prefixes
from svcnode.core.address import parse_address, parse_node_address
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import (
    MAX_ID_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    MAX_THRESHOLD,
    TOKEN_PATTERN,
    VERSION_PATTERN,
    Tolerance,
    parse_slo,
    slo_text,
    validate_multiline,
    validate_service_id,
    validate_single_line,
    validate_tag,
    validate_text,
    validate_token,
    validate_version,
)
from svcnode.core.option_types import integer_at_most, option_type, public_text, show_as_is
from svcnode.core.text import TYPE_NAMES, type_name
from svcnode.core.url import MAX_LINK_CHARS, NOT_IN_LINK, validate_link
from svcnode.probes.options import raise_first

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from svcnode.api.cors import CorsPolicy
    from svcnode.core.maintenance import MaintenanceStart
    from svcnode.core.option_types import Schema

LINE = {"type": "string", "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]*$"}
NOT_EMPTY_LINE = {**LINE, "minLength": 1}
_PORT = integer_at_most(65535)
_TCP_ADDRESS = rf"(?:https?://)?(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s,]+):{_PORT}/?"
_HOST = rf"(\[[0-9A-Fa-f:.]+\]|[^@/?#:,\[\]]+)(:{_PORT})?"
REGISTRY_URL = {
    "type": "string",
    "pattern": rf"^etcd://([^:@/?#]+(:[^/?#]*)?@)?{_HOST}(,{_HOST})*(/[A-Za-z0-9._~/-]*)?$",
}


# ---- texts


def line(name: str, *, may_be_empty: bool = False, max_chars: int | None = None) -> Callable[[object], str]:
    """`name` is how errors call the value."""
    schema = (LINE if may_be_empty else NOT_EMPTY_LINE) | ({} if max_chars is None else {"maxLength": max_chars})

    @option_type(schema, show=show_as_is)
    def parse(value: object) -> str:
        text = public_text(value)
        (validate_single_line if may_be_empty else validate_text)(name, text)
        if max_chars is not None and len(text) > max_chars:
            raise InvalidValueError(f"{name} has at most {max_chars} characters, not {len(text)}")
        return text

    return parse


replica_name = line("the name of a replica", max_chars=MAX_ID_CHARS)


@option_type({"type": "string", "pattern": "^[^\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]*$"}, show=show_as_is)
def description(value: object) -> str:
    text = public_text(value)
    validate_multiline("the description", text)
    return text


@option_type({**NOT_EMPTY_LINE, "maxLength": MAX_ID_CHARS, "not": {"enum": [".", ".."]}}, show=show_as_is)
def service_id(value: object) -> str:
    text = public_text(value)
    validate_service_id(text)
    return text


@option_type({"type": "string", "pattern": f"^{VERSION_PATTERN.pattern}$"}, show=show_as_is)
def version(value: object) -> str:
    text = public_text(value)
    validate_version("a version", text)
    return text


@option_type(NOT_EMPTY_LINE, show=str)
def file_path(value: object) -> Path:
    text = public_text(value)
    validate_text("the path", text)
    return Path(text)


@option_type({"type": "string", "pattern": f"^{TOKEN_PATTERN.pattern}$"})
def token(value: object) -> str:
    text = public_text(value)
    validate_token(text)
    return text


@option_type({"type": "string", "minLength": 1})
def password(value: object) -> str:
    text = public_text(value)
    if not text:
        raise InvalidValueError("must not be empty")
    return text


@option_type({"type": "string", "pattern": f"^(off|{integer_at_most(MAX_THRESHOLD - 1)}/[0-9]{{1,4}})$"}, show=str)
def tolerance(value: object) -> Tolerance:
    return Tolerance.parse(value)


@option_type({"type": "string", "pattern": r"^(off|[0-9]{1,2}(\.[0-9]{1,4})?%)$"}, show=slo_text)
def slo(value: object) -> float | None:
    return parse_slo(value)


# ---- addresses


@option_type({"type": "string", "pattern": "^unix:."}, show=show_as_is)
def unix_socket(value: object) -> Path:
    text = public_text(value)
    if not text.startswith("unix:"):
        raise InvalidValueError('must be a Unix socket, such as "unix:/run/svcnode/control.sock"')
    return Path(parse_address(text, has_tls=False).path)


def _one_or_list(pattern: str, in_list: str = "", never: str = "") -> Schema:
    """One value, several ones separated by commas, or a list; `never` is a pattern that no value has."""
    rule = {"not": {"pattern": never}} if never else {}
    several = {"type": "string", "pattern": rf"^\s*{pattern}(\s*,\s*{pattern})*\s*$", **rule}
    item = {"type": "string", "pattern": f"^{in_list or pattern}$", **rule}
    return {"anyOf": [several, {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}]}


def _texts(value: object) -> list[str]:
    """Commas separate values, as in an environment variable. Raises an error for each wrong value of a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise InvalidValueError(f"must be a string or a list, not {type_name(value)}")
    return each(public_text)(value)


def each(parse: Callable[[object], Any]) -> Callable[[list[Any]], list[Any]]:
    """Converts the values of a list. Raises an `OptionError` for each one that is wrong, with its index."""

    def parse_all(values: list[Any]) -> list[Any]:
        parsed: list[Any] = []
        errors: list[OptionError] = []
        for index, value in enumerate(values):
            try:
                parsed.append(parse(value))
            except InvalidValueError as exc:
                if len(values) == 1:
                    raise  # the key is enough
                errors.append(OptionError(index, str(exc)))
        raise_first(errors)
        return parsed

    return parse_all


@option_type(_one_or_list(rf"({_TCP_ADDRESS}|unix:[^,]+)", in_list=rf"({_TCP_ADDRESS}|unix:.+)"))
def addresses(value: object) -> tuple[str, ...]:
    """As texts: an address without a scheme uses TLS if there is a certificate."""
    texts = _texts(value)
    if not texts:
        raise InvalidValueError("needs at least one address")
    if isinstance(value, list):
        each(_parse_address)(texts)
    else:
        for text in texts:
            _parse_address(text)
    return tuple(texts)


def _parse_address(text: Any) -> None:  # noqa: ANN401  see `each`
    parse_address(text, has_tls=True)


@option_type(lambda: _one_or_list(f"{PREFIX_PATTERN.pattern}/*", never=r"/\.\.?(/|,|\s|$)"))
def prefixes(value: object) -> tuple[str, ...]:
    return parse_prefixes(_texts(value))


@option_type(
    {"type": "string", "pattern": f"^{PREFIX_PATTERN.pattern[:-1]}+/*$", "not": {"pattern": r"/\.\.?(/|$)"}}, show=str
)
def public_path(value: object) -> str:
    (path,) = parse_prefixes(public_text(value))
    if not path:
        raise InvalidValueError('must be a path such as "/public"; for a whole address, set listen')
    return path


@option_type(lambda: _one_or_list(rf"(?:\*|https?://(?:\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::{_PORT})?)"))
def origins(value: object) -> CorsPolicy:
    from svcnode.api.cors import parse_origins  # few nodes are read by pages of another origin

    return parse_origins(_texts(value))


@option_type({"type": "string", "pattern": "^$|^https?://[^@]+$"}, show=show_as_is)
def node_url(value: object) -> str:
    text = public_text(value)
    if not text:
        return ""
    if not text.startswith(("http://", "https://")):
        raise InvalidValueError(
            'must be the URL at which others reach this node, such as "http://10.0.0.5:8420", or empty'
        )
    address = parse_node_address(text)
    if address.url.username or address.url.password:
        raise InvalidValueError("must have no user name and no password, because all replicas can read it")
    return f"{address.origin}{address.url.path}"


@option_type(
    {"type": "string", "pattern": f"^$|^https?://[^{NOT_IN_LINK}]+$", "maxLength": MAX_LINK_CHARS}, show=show_as_is
)
def link(value: object) -> str:
    """A link that is shown to people; empty if there is none."""
    text = public_text(value)
    if text:
        validate_link("the link", text)
    return text


@option_type({"type": "string", "pattern": f"^$|^https?://[^?#{NOT_IN_LINK}]+$", "maxLength": MAX_LINK_CHARS}, show=str)
def page_url(value: object) -> str:
    text = link(value)
    if "?" in text or "#" in text:
        raise InvalidValueError("the link must have no query and no fragment, because links to a service add their own")
    return text


# ---- values that are read later, with the environment or with other keys


def any_of(*types: type, schema: Schema) -> Callable[[object], Any]:
    """The value as written, of one of these types."""

    @option_type(schema)
    def parse(value: object) -> Any:  # noqa: ANN401  one of the types
        if type(value) not in types:
            names = " or ".join(TYPE_NAMES[one] for one in types)
            raise InvalidValueError(f"must be {names}, not {type_name(value)}")
        return value

    return parse


_CLOCK_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"


@option_type({"type": "string", "pattern": f"^{_CLOCK_TIME}-{_CLOCK_TIME}$"}, show=str)
def quiet_hours(value: object) -> tuple[time, time]:
    """A time of every day, such as 22:00-07:00; it may end on the next day."""
    text = public_text(value)
    if not re.fullmatch(f"{_CLOCK_TIME}-{_CLOCK_TIME}", text, re.ASCII):
        raise InvalidValueError(f'must be two times of day such as "22:00-07:00", not "{text}"')
    begin, end = map(time.fromisoformat, text.split("-"))
    if begin == end:
        raise InvalidValueError("must not begin and end at the same time")
    return begin, end


def targets(schema: Schema) -> Callable[[object], list[Any]]:
    """One notification target, or a list; each is a URL, or a table with a URL and options."""
    one = any_of(str, dict, schema=schema)

    @option_type({"anyOf": [schema, {"type": "array", "items": schema, "uniqueItems": True}]})
    def parse(value: object) -> list[Any]:
        if isinstance(value, list):
            return each(one)(value)
        return [any_of(str, dict, list, schema={})(value)]

    return parse


# ---- lists


@option_type({"type": "array", "items": NOT_EMPTY_LINE, "minItems": 1}, show=list)
def names(value: object) -> tuple[str, ...]:
    if value == []:
        raise InvalidValueError("is an empty list; remove this key")
    return tuple(each(line("a name"))(_list(value)))


@option_type(
    {
        "type": "array",
        "items": {"type": "string", "pattern": rf"^[^\s,]{{1,{MAX_TAG_CHARS}}}$"},
        "minItems": 1,
        "maxItems": MAX_TAGS,
    },
    show=list,
)
def tags(value: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(names(value)))
    for tag in found:
        validate_tag(tag)
    if len(found) > MAX_TAGS:
        raise InvalidValueError(f"has {len(found)} tags; a service has at most {MAX_TAGS}")
    return found


@option_type({"anyOf": [NOT_EMPTY_LINE, {"type": "array", "items": NOT_EMPTY_LINE, "minItems": 1}]}, show=list)
def published(value: object) -> tuple[str, ...]:
    """Names: a list, or a text in which commas separate them."""
    if value == []:
        raise InvalidValueError("is an empty list; remove this key")
    return tuple(dict.fromkeys(each(line("a name"))(_texts(value))))


@option_type({"type": "array", "items": NOT_EMPTY_LINE, "minItems": 1}, show=list)
def service_ids(value: object) -> tuple[str, ...]:
    if value == []:
        raise InvalidValueError("is an empty list; remove this key for maintenance of the whole node")
    return tuple(each(public_text)(_list(value)))


@option_type(
    {"type": "array", "items": NOT_EMPTY_LINE | {"maxLength": MAX_ID_CHARS}, "minItems": 1, "uniqueItems": True},
    show=list,
)
def replicas(value: object) -> tuple[str, ...]:
    names = tuple(each(replica_name)(_list(value)))
    if not names:
        raise InvalidValueError("needs at least one replica; remove this key if every replica may check the service")
    if len(set(names)) < len(names):
        raise InvalidValueError("names the same replica twice; remove one of them")
    return names


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidValueError(f"must be a list, not {type_name(value)}")
    return value


# ---- maintenance


@option_type(
    {"type": "string", "pattern": "^((Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([01][0-9]|2[0-3]):[0-5][0-9]$"}, show=str
)
def start_time(value: object) -> MaintenanceStart:
    from svcnode.core.maintenance import parse_start

    return parse_start(public_text(value))


@option_type({"type": "string", "pattern": "^[A-Za-z0-9_+/-]+$"}, show=str)
def timezone(value: object) -> tzinfo:
    from svcnode.core.maintenance import parse_timezone

    return parse_timezone(public_text(value))
