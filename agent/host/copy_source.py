"""The sender's side of catch-up by segments: tells a follower what is gone, and lends it entries.

Law of this file: a follower whose next entry was trimmed copies the log beside Raft (safety 27). The leader
tells it where the log begins, again and again until the follower holds that entry. Any replica lends
committed entries, a leader also the rest of its term's log. Entries that are being copied stay
(copy_leases.py). The receiver's side stands in copy_target.py.
"""

import asyncio
import logging

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.open_group import GroupHost, working_replica
from shoal.agent.log_lines.names import agent_name
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.entry_messages import (
    CopyOffer,
    Piece,
    decode_held,
    decode_wanted,
    encode_offer,
    encode_piece,
)
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import ReplicaId
from shoal.segment_store.errors import Damaged, StoreError

OFFER_INTERVAL_S = 0.25
OFFER_TIMEOUT_MS = 2_000
MAX_OFFERS = 16
"""On their way at the same time; the others' turn comes with the next look."""
PIECE_BYTES = 256 * 2**10
"""Of one answer, unless a single entry is larger: appends to other groups share the link (safety 24)."""

logger = logging.getLogger(__name__)


class CopySource:
    """One per host; run() for its life."""

    def __init__(self, links: Links, host: GroupHost) -> None:
        self._links = links
        self._host = host
        self._offers: dict[tuple[GroupId, ReplicaId], asyncio.Task[None]] = {}
        links.handle_request(PeerMessage.SEGMENTS_PIECE, self.on_wanted)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(OFFER_INTERVAL_S)
                for replica in self._host.led_replicas():
                    if replica.core.first_index > 1:
                        for receiver in replica.core.needs_segments:
                            self._begin(replica, receiver)
        finally:
            for task in list(self._offers.values()):
                task.cancel()

    def _begin(self, replica: Replica, receiver: ReplicaId) -> None:
        key = (replica.group, receiver)
        if key in self._offers or len(self._offers) >= MAX_OFFERS:
            return
        task = self._offers[key] = asyncio.ensure_future(self._offer(replica, receiver))
        task.add_done_callback(lambda _: self._offers.pop(key, None))

    async def _offer(self, replica: Replica, receiver: ReplicaId) -> None:
        core = replica.core
        member, first_term = core.configuration.find(receiver), core.term_at(core.first_index)
        if member is None or first_term is None:
            return
        offer = CopyOffer(receiver, core.replica_id, core.term, core.first_index, first_term)
        receiver_name = agent_name(member.agent_id)
        payload = encode_offer(replica.group, offer)
        try:
            answer = await self._links.request(
                member.agent_id, PeerMessage.SEGMENTS_OFFER, payload, OFFER_TIMEOUT_MS
            )
            held = decode_held(answer)
        except (PeerUnavailable, PeerRequestFailed, PeerMessageError) as error:
            logger.debug("%s: %s does not copy segments now: %s", replica.group, receiver_name, error)
            return
        if held >= offer.first_index and replica.is_leader and core.term == offer.term:
            logger.info(
                "%s: %s has copied up to entry %d and follows again", replica.group, receiver_name, held
            )
            replica.shipments.done(receiver)
            core.caught_up(receiver, held, replica.host.clock.now_ms())
            replica.host.schedule(replica)

    async def on_wanted(self, _peer: str, payload: bytes) -> bytes:
        """Entries for a copy. Raises ShoalError: trimmed, damaged, and why this replica has none to lend."""
        group, wanted = decode_wanted(payload)
        replica = working_replica(self._host, group)
        if wanted.first_index < replica.log.first_index:
            raise ShoalError("trimmed", f"the log begins at entry {replica.log.first_index} here")
        replica.shipments.asked(wanted.receiver, wanted.first_index, replica.host.clock.now_ms())
        core, leads = replica.core, replica.is_leader
        term = core.term
        frames: list[bytes | memoryview] = []
        last_index = _lendable(replica)
        if wanted.first_index <= last_index:
            try:
                found = await replica.log.read(wanted.first_index, last_index, PIECE_BYTES)
                frames = [frame.data for frame in found]
            except Damaged as error:
                replica.met(error)
                raise ShoalError("damaged", f"entry {wanted.first_index} cannot be lent: {error}") from error
            except StoreError as error:
                raise ShoalError("not-ready", str(error)) from error
        if core.term != term or replica.is_leader != leads:
            raise ShoalError("not-leader", "leadership moved while entries were read")
        committed = replica.state.committed.last_index
        return encode_piece(Piece(leads, term, committed, core.last_index), frames)


def _lendable(replica: Replica) -> LogIndex:
    """The certain part of the log: all of a leader's, of any other the committed entries."""
    if replica.is_leader and not replica.disk.log_is_behind:
        return LogIndex(min(replica.core.last_index, replica.log.last_index))
    return replica.readable_index
