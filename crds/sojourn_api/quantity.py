"""Quantities of the API, such as 500m or 64Gi, by Kubernetes' own grammar; and bytes in words.

Pure.
"""

import re
from decimal import Decimal
from typing import Final

from sojourn_api.reader import Invalid

SUFFIXES: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
MOST: Final = Decimal(2**63 - 1)
"""What is beyond counts as this, as in Kubernetes."""
MAX_CHARACTERS: Final = 64
# More than two digits of an exponent are nobody's wish: 1e19 is beyond the most already.
GRAMMAR: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]?))"
)


UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")


def size(count: int) -> str:
    """Bytes for people, in three digits: `1 byte`, `269 MB`, `1.5 GB`, `24.6 TB`."""
    if count < 1000:
        return f"{count} byte{'' if count == 1 else 's'}"
    amount, unit = float(count), ""
    for unit in UNITS:  # noqa: B007 - the last one that was looked at is meant
        amount /= 1000
        if amount < 999.5:  # more would be rounded up to the next unit's 1
            break
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    text = f"{amount:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"


def quantity(text: str, path: str = "quantity") -> Decimal:
    """The value of a quantity; `Invalid` with this path for all that is none."""
    found = GRAMMAR.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
        hint = "write digits with a unit or none, as 2, 500m or 64Gi"
        raise Invalid(path, f"must be a quantity, not {shown!r}; {hint}")
    number, exponent, suffix = found.groups()
    value = Decimal(number + (exponent or "")) * SUFFIXES[suffix or ""]
    return max(-MOST, min(value, MOST))
