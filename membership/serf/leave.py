"""Our own graceful leave, step by step.

Law of this file: the order of the words and how long each is waited for. Serf's leave intent must be
told before memberlist's "I am dead": the other way round everybody shows us as failed. Afterwards we
still answer for a while, so that late probes do not take us for a corpse that was never told of.
"""

from enum import Enum, auto

from shoal.membership.config import GossipConfig
from shoal.membership.swim.broadcasts import Broadcast
from shoal.membership.swim.core import SwimCore


class LeaveStage(Enum):
    """MEMBER -> INTENT (telling the intent) -> DEAD (telling the death) -> DRAIN (answering) -> LEFT."""

    MEMBER = auto()
    INTENT = auto()
    DEAD = auto()
    DRAIN = auto()
    LEFT = auto()


class Leave:
    """Each stage ends when its message was told, when nobody is there to hear it, or at its deadline. Those
    whom we found dead a moment ago may hear it: a slow host is wrong about all others at once."""

    def __init__(self, config: GossipConfig) -> None:
        self._config = config
        self._broadcast: Broadcast | None = None
        self._deadline_ms = 0
        self.stage = LeaveStage.MEMBER

    @property
    def begun(self) -> bool:
        return self.stage is not LeaveStage.MEMBER

    @property
    def deadline_ms(self) -> int | None:
        """When the stage under way ends at the latest; None when there is none."""
        return None if self.stage in (LeaveStage.MEMBER, LeaveStage.LEFT) else self._deadline_ms

    def begin(self, intent: Broadcast, now_ms: int) -> None:
        """The intent is queued."""
        assert not self.begun
        self.stage = LeaveStage.INTENT
        self._wait(intent, now_ms)

    def _wait(self, broadcast: Broadcast | None, now_ms: int) -> None:
        self._broadcast = broadcast
        self._deadline_ms = now_ms + self._config.broadcast_timeout_ms

    def _is_told(self, swim: SwimCore, now_ms: int) -> bool:
        told = self._broadcast is None or self._broadcast.finished
        return told or not swim.listeners(now_ms) or now_ms >= self._deadline_ms

    def wake(self, swim: SwimCore, now_ms: int) -> bool:
        """Go on as far as possible; True when SWIM was told to leave just now and has something to say."""
        has_left_swim = False
        if self.stage is LeaveStage.INTENT and self._is_told(swim, now_ms):
            self.stage = LeaveStage.DEAD
            self._wait(swim.leave(now_ms), now_ms)
            has_left_swim = True
        if self.stage is LeaveStage.DEAD and self._is_told(swim, now_ms):
            self.stage = LeaveStage.DRAIN
            self._deadline_ms = now_ms + (self._config.leave_propagate_ms if swim.listeners(now_ms) else 0)
        if self.stage is LeaveStage.DRAIN and now_ms >= self._deadline_ms:
            self.stage = LeaveStage.LEFT
        return has_left_swim
