"""Senders with a wrong key or another cluster's label, told once a minute and not once a packet.

Law of this file: counts and the lines worth logging; it neither logs nor knows a clock. Bounded in names, in
lines and in memory, because a flood comes from addresses of its own choice.
"""

from dataclasses import dataclass

INTERVAL_MS = 60_000
"""One line about one offender so often."""

MAX_OFFENDERS = 32
"""Offenders told apart at a time; more of them share one line."""

OTHERS = "others"


@dataclass(slots=True)
class _Offender:
    told_ms: int
    untold: int


class Offenders:
    """note() answers the line to log, or None."""

    def __init__(self) -> None:
        self._known: dict[str, _Offender] = {}
        self.refused = 0

    def note(self, who: str, why: str, now_ms: int) -> str | None:
        """One more packet or stream was refused."""
        self.refused += 1
        if who not in self._known and len(self._known) >= MAX_OFFENDERS:
            self._forget(now_ms)
            if len(self._known) >= MAX_OFFENDERS:
                who = OTHERS
        offender = self._known.get(who)
        if offender is None:
            self._known[who] = _Offender(now_ms, 0)
            return f"refused {who}: {why}"
        offender.untold += 1
        if now_ms - offender.told_ms < INTERVAL_MS:
            return None
        count, offender.untold, offender.told_ms = offender.untold, 0, now_ms
        return f"refused {who} {count} more times in the last {INTERVAL_MS // 1000} s or longer: {why}"

    def _forget(self, now_ms: int) -> None:
        """Make room: an address named a minute ago may be named as new."""
        for who in [who for who, held in self._known.items() if now_ms - held.told_ms >= INTERVAL_MS]:
            del self._known[who]
