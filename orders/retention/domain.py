"""What texts name."""

import json
import re
from contextlib import suppress

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def named_in(body: bytes) -> frozenset[str]:
    """Every string in a message, also in one that is not quite JSON; ids in lower case as well."""
    found: set[str] = set()
    for literal in STRING.findall(body.decode(errors="replace")):
        with suppress(ValueError):
            text = json.loads(literal, strict=False).strip()
            found |= {text, text.lower()}
    return frozenset(found)
