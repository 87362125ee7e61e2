"""Append requests of one leader, with their frames, to its followers.

Law of this file: frames come from memory for a follower that keeps up, and from the log, asynchronously, for
one that is behind. A request is cut at max_append_bytes, and the core is told. Requests to one follower
leave in order; what a cut has overtaken is dropped, since the core asks for it anew. A frame that the log
cannot give stops nothing else.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal.agent.durable.ids import GroupId
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.frames_ahead import FramesAhead
from shoal.agent.peers.frames import Piece, encode_append
from shoal.format.batch import Frame, LogIndex, Term
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import AppendReply, AppendRequest, encode_request, shorten
from shoal.replication.raft import RaftCore
from shoal.segment_store.errors import Damaged, StoreError
from shoal.segment_store.log.log import PartitionLog

MAX_QUEUED_REQUESTS = 64
"""Per follower that is behind; the core's own bound on requests in flight. More are dropped, and asked for
anew."""

MAX_TIMED = 64
"""Followers whose answers are awaited by the clock; those that are gone are forgotten with all others."""

seldom = once_a_minute(logging.getLogger(__name__))

Ship = Callable[[str, list[Piece]], None]


class Sender:
    """`ship(agent id, pieces)` puts one request with its frames on the bulk link; `on_cut()` says that the
    core has more to send at once, `on_damage(error)` that the log cannot give what it holds."""

    def __init__(
        self,
        group: GroupId,
        core: RaftCore,
        ahead: FramesAhead,
        log: PartitionLog,
        max_append_bytes: int,
        *,
        ship: Ship,
        on_cut: Callable[[], None],
        on_damage: Callable[[Damaged], None],
    ) -> None:
        self._group = group
        self._core = core
        self._ahead = ahead
        self._log = log
        self._max_append_bytes = max_append_bytes
        self._ship = ship
        self._on_cut = on_cut
        self._on_damage = on_damage
        self._behind: dict[ReplicaId, deque[AppendRequest]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timed: dict[ReplicaId, tuple[Term, LogIndex, int | None]] = {}
        """Of each follower one request at a time: its term, its last entry, and when it left, in ns. None
        once it was sent again: its answer may be one to either (Karn and Partridge, 1987)."""
        self._stopped = False

    def send(self, request: AppendRequest) -> None:
        runs = request.runs
        assert runs
        if self._behind and (queue := self._behind.get(request.receiver)) is not None:
            if len(queue) < MAX_QUEUED_REQUESTS:
                queue.append(request)
            return
        last = runs[-1].last
        if last == request.previous_index + 1 and (only := self._ahead.frames.get(last)) is not None:
            self._ship_frames(request, last, (only.data,))
            return
        frames = self._ahead.run(runs[0].first, last, self._max_append_bytes)
        if frames:
            self._send_frames(request, frames)
            return
        self._behind[request.receiver] = deque([request])
        task = asyncio.ensure_future(self._read_and_send(request.receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send_frames(self, request: AppendRequest, frames: Sequence[Frame]) -> bool:
        """False when the request had to be cut."""
        last = frames[-1].stamp.index
        whole = last == request.last_index
        if not whole:
            request = shorten(request, last)
            self._core.shortened(request.receiver, last)
            self._on_cut()
        self._ship_frames(request, last, [frame.data for frame in frames])
        return whole

    def _ship_frames(self, request: AppendRequest, last: LogIndex, frames: Sequence[Piece]) -> None:
        """A receiver is a replica of the configuration in force, unless it has just left that."""
        receiver = request.receiver
        follower = self._core.state.configurations[-1].by_id.get(receiver)
        if follower is None:
            return
        self._ship(follower.agent_id, encode_append(self._group, encode_request(request), frames))
        timed = self._timed.get(receiver)
        if timed is None or timed[0] != request.term:
            if len(self._timed) >= MAX_TIMED:
                self._timed.clear()
            self._timed[receiver] = request.term, last, time.monotonic_ns()
        elif last <= timed[1]:
            self._timed[receiver] = (*timed[:2], None)

    def acknowledged(self, reply: AppendReply, now_ns: int) -> int | None:
        """How long the entries took that this follower says it holds now; None where that is not known."""
        timed = self._timed.get(reply.sender)
        if timed is None or reply.match_index < timed[1]:
            return None
        term, _, left_ns = self._timed.pop(reply.sender)
        return now_ns - left_ns if left_ns is not None and term == reply.term else None

    async def _read_and_send(self, receiver: ReplicaId) -> None:
        queue = self._behind[receiver]
        try:
            while queue and not self._stopped:
                request = queue.popleft()
                first = LogIndex(request.previous_index + 1)
                last = LogIndex(min(request.last_index, self._log.last_index))
                frames = await self._log.read(first, last, self._max_append_bytes)
                if not self._still_true(request, frames):
                    continue
                if not self._send_frames(request, frames):
                    queue.clear()
        except Damaged as error:  # this follower gets it once it is mended
            self._on_damage(error)
        except StoreError as error:
            # A failing disk: this follower gets nothing from here; the log reports it to its owner.
            follower = self._core.configuration.find(receiver)
            to = agent_name(follower.agent_id) if follower else receiver
            seldom.error("cannot read entries to send to %s: %s", to, error)
        finally:
            del self._behind[receiver]

    def _still_true(self, request: AppendRequest, frames: Sequence[Frame]) -> bool:
        """Whether, after the wait for the disk, the log still holds what the request names."""
        if self._stopped or self._core.term != request.term or not frames:
            return False
        return all(self._core.term_at(frame.stamp.index) == frame.stamp.term for frame in frames)

    async def stop(self) -> None:
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks)
