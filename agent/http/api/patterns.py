"""Texts of the HTTP API as patterns, for its description (ECMA 262).

Pure values. Each fits exactly the texts that the server takes, as far as a pattern can say it. A text that a
client accepts by them is refused by no agent, and the reverse. Their readers are parameters.py, cursors.py
and records.py.
"""

from __future__ import annotations

from shoal.agent.security.needs import ACTIONS, ResourceKind

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)"
_DAY = (
    "(?!0000)([0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    f"|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?"
_ZONE = "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
TIMES = f"-?[0-9]{{1,15}}|{_DAY}[Tt ]{_CLOCK}{_ZONE}"
"""RFC 3339, or milliseconds since the epoch."""
TIME = f"^({TIMES})$"
FROM = f"^(earliest|latest|-?[0-9]{{1,18}}|@({TIMES}))$"
FROM_MERGED = f"^(earliest|latest|-[0-9]{{1,4}}|@({TIMES}))$"

_PLACE = "[0-9]{1,4}:[0-9]{1,18}"
_NAMED_TWICE = "([^:]*:[^:]*,)*?0*([0-9]+):([^:]*:)*?[^:]*,0*"
PLACES = rf"^((?!{_NAMED_TWICE}\3:){_PLACE}(,{_PLACE})*|p[A-Za-z0-9_-]+)$"
"""Offsets by partition, none of them named twice; or a compact cursor, whose bytes no pattern can say."""

AGES = (
    "([1-9][0-9]{3,11}|[12][0-9]{12})(ms)?",
    "([1-9][0-9]{0,8}|[12][0-9]{9})s",
    "([1-9][0-9]{0,6}|[1-4][0-9]{7})m",
    "([1-9][0-9]{0,4}|[1-7][0-9]{5})h",
    "([1-9][0-9]{0,3}|[12][0-9]{4}|3[0-5][0-9]{3})d",
)
AGE = f"^({'|'.join(AGES)})$"
TIMEOUT = "^([1-9][0-9]{2,3}(ms)?|[1-5][0-9]{4}(ms)?|60000(ms)?|([1-9]|[1-5][0-9]|60)s|1m)$"
"""From a tenth of a second on: less is taken, since agents ask each other with what is left of a client's
time, and is often too short for a disk."""
PAUSE = "^(([0-5]?[0-9]{1,4}|60000)(ms)?|([0-5]?[0-9]|60)s|[01]m)$"

_NAMES = (
    "[a-zA-Z0-9-][a-zA-Z0-9._-]{0,248}",
    "[.][a-zA-Z0-9_-][a-zA-Z0-9._-]{0,247}",
    "[.]{2}[a-zA-Z0-9._-]{1,247}",
)
USER_NAME = f"^({'|'.join(_NAMES)})$"
"""Of a topic that somebody may make; not `.` nor `..`, which no path can have as a segment."""
NAME = f"^({'|'.join(_NAMES)}|_[a-zA-Z0-9._-]{{0,248}})$"

_UNITS_MS = {"(ms)?": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def numbers(low: int, high: int) -> str:
    """Whole numbers without leading zeros, from one to another."""
    parts: list[str] = []
    while low <= high:
        end = _end_of_block(low, high)
        parts.append(
            "".join(
                first if first == last else f"[{first}-{last}]"
                for first, last in zip(str(low), str(end), strict=True)
            )
        )
        low = end + 1
    return "|".join(parts)


def _end_of_block(low: int, high: int) -> int:
    """The greatest number such that one class a digit fits all from `low` to it."""
    end, step = low, 1
    while True:
        digit = low // step % 10
        for last in range(9, digit, -1):
            wider = low + (last - digit) * step + step - 1
            if wider <= high and len(str(wider)) == len(str(low)):
                end = wider
                break
        if digit or end != low // (10 * step) * 10 * step + 10 * step - 1 or not low // (10 * step):
            return end
        step *= 10


def durations(low_ms: int, high_ms: int) -> str:
    """Durations in one unit, from one to another."""
    parts = [
        f"({numbers(-(-low_ms // unit_ms), high_ms // unit_ms)}){unit}"
        for unit, unit_ms in _UNITS_MS.items()
        if -(-low_ms // unit_ms) <= high_ms // unit_ms
    ]
    return f"^({'|'.join(parts)})$"


GROUP_NAME = "^(?![.]{1,2}$)[a-zA-Z0-9._-]{1,64}$"
"""Of a consumer group."""
PRINCIPAL = "^[a-zA-Z0-9_@+-][a-zA-Z0-9._@+:/|-]{0,255}$"
"""The name of a principal."""
_OPEN_NAME = "[a-zA-Z0-9.-][a-zA-Z0-9._-]{0,248}"  # of a topic that rules may name
_TOPICS = f"([*]|{_OPEN_NAME}[*]?)"
_GROUPS = f"([*]|{_OPEN_NAME}(/[a-zA-Z0-9._-]{{0,64}})?[*]|{_OPEN_NAME}/[a-zA-Z0-9._-]{{1,64}})"
ROLE = f"^([a-zA-Z0-9._-]{{1,64}}|(producer|consumer):{_TOPICS})$"
"""The name of a role, the built-in ones of topics among them."""
TOKEN_ID = "^[a-z2-7]{8}$"  # noqa: S105 -- the form of an id


def _actions(kind: ResourceKind) -> str:
    one = f"({'|'.join(ACTIONS[kind])})"
    return f"([*]|{one}(,{one})*)"


RULE = (
    f"^(topic:{_TOPICS}={_actions(ResourceKind.TOPIC)}|group:{_GROUPS}={_actions(ResourceKind.GROUP)}"
    f"|cluster={_actions(ResourceKind.CLUSTER)})$"
)
START = f"^(earliest|latest|@({TIMES}))$"
RECEIPT = "^g1[A-Za-z0-9_-]{53}[AQgw]([.](0|[1-9][0-9]{0,17})(-[1-9][0-9]{0,17})?)?$"

BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
KEY = "^([0-9a-fA-F]{16}|[A-Za-z0-9+/]{21}[AQgw]==|[A-Za-z0-9+/]{32}|[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=)$"
"""A gossip key: its fingerprint, or 16, 24 or 32 bytes in base64."""
WHOLE_KEY = KEY.replace("[0-9a-fA-F]{16}|", "")
PRODUCER_ID = "^[!-~]([ -~]{0,126}[!-~])?$"
"""What a header can carry: spaces at its ends would be lost."""
IDEMPOTENCY_KEY = PRODUCER_ID
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
ADDRESS = f"^[a-zA-Z0-9][a-zA-Z0-9.-]{{0,200}}(:({_PORT}))?$"
