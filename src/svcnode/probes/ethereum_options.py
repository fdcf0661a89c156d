"""Options about accounts and contracts of Ethereum: an address, an amount of ether, and a call of a contract."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import option_type, show_as_is
from svcnode.core.text import type_name

UNITS = {"ether": 18, "gwei": 9, "wei": 0}  # 1 ether is 10**18 wei
_ADDRESS = "0x[0-9a-fA-F]{40}"
_WORD = "0x[0-9a-fA-F]{64}"  # a number, a flag or an address is returned as one word of 32 bytes
_BYTES = "0x(?:[0-9a-fA-F]{2})+"
_AMOUNT = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,18}))? ?(ether|gwei|wei)", re.ASCII)


# ---- amounts


def amount_text(wei: int) -> str:
    """Exact, in the largest unit with few zeros before the first digit."""
    unit = next(unit for unit, exponent in UNITS.items() if exponent == 0 or wei >= 10 ** (exponent - 4))
    whole, part = divmod(wei, 10 ** UNITS[unit])
    digits = f"{part:0{UNITS[unit]}}".rstrip("0") if part else ""
    return f"{whole}{f'.{digits}' if digits else ''} {unit}"


@option_type({"type": "string", "pattern": rf"^\s*{_AMOUNT.pattern}\s*$"}, show=amount_text)
def amount(value: object) -> int:
    """In wei: a whole number, so that nothing is rounded."""
    if not isinstance(value, str):
        raise InvalidValueError(f'must be a string with a unit such as "0.1 ether", not {type_name(value)}')
    found = _AMOUNT.fullmatch(value.strip())
    if found is None:
        raise InvalidValueError(f'must be a number and one of {", ".join(UNITS)}, such as "0.1 ether", not "{value}"')
    whole, part, unit = found[1], (found[2] or "").rstrip("0"), found[3]
    if len(part) > UNITS[unit]:
        raise InvalidValueError(f'"{value}" is not a whole number of wei')
    wei = int(whole + part.ljust(UNITS[unit], "0"))
    if not wei:
        raise InvalidValueError(f'must be more than 0, not "{value}"')
    return wei


# ---- addresses and calls


def _matching(value: object, pattern: str, what: str) -> str:
    if isinstance(value, str) and re.fullmatch(pattern, value):
        return value
    shown = f'"{value}"' if isinstance(value, str) else type_name(value)
    raise InvalidValueError(f"{what}, not {shown}")


@option_type({"type": "string", "pattern": f"^{_ADDRESS}$"}, show=show_as_is)
def address(value: object) -> str:
    return _matching(value, _ADDRESS, "must be an address, which is 0x and 40 hexadecimal digits")


class ContractCall(NamedTuple):
    to: str
    data: str
    expect: str

    def is_met_by(self, result: str) -> bool:
        """Numbers, flags and addresses are returned as one word: they may be written without the zeros before them."""
        if re.fullmatch(_WORD, result) and len(self.expect) <= len(result):
            return int(result, 16) == int(self.expect, 16)
        return result.lower() == self.expect.lower()


@option_type(
    {
        "type": "object",
        "properties": {
            "to": {"type": "string", "pattern": f"^{_ADDRESS}$"},
            "data": {"type": "string", "pattern": f"^{_BYTES}$"},
            "expect": {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^{_BYTES}$"}]},
        },
        "required": ["to", "data", "expect"],
        "additionalProperties": False,
    },
    show=lambda call: call._asdict(),
)
def contract_call(value: object) -> ContractCall:
    if not isinstance(value, dict) or value.keys() != {"to", "data", "expect"}:
        raise InvalidValueError('must be a table such as { to = "0x…", data = "0x…", expect = "0x…" }')
    expect = f"0x{int(value['expect']):02}" if isinstance(value["expect"], bool) else value["expect"]
    return ContractCall(
        _matching(value["to"], _ADDRESS, "to must be an address, which is 0x and 40 hexadecimal digits"),
        _matching(value["data"], _BYTES, "data must be 0x and pairs of hexadecimal digits"),
        _matching(expect, _BYTES, "expect must be true, false, or 0x and pairs of hexadecimal digits"),
    )


Address = Annotated[str, address]
Wei = Annotated[int, amount]
Call = Annotated[ContractCall, contract_call]
