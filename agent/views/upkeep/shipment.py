"""A view goes to a peer: its runs as they lie, piece by piece, each verified before it counts.

Law of this file: the asker says what it wants, the lender remembers only which runs must stay, and not for
long. Bytes are verified by the run's own checksums, which name the log. Where the runs count, and since when,
is the asker's matter.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import ExitStack
from typing import Final, Protocol

from shoal.agent.durable.ids import GROUP_ID_BYTES, GroupId
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError, decode_group
from shoal.agent.views.manifest import Manifest, RunEntry, decode_manifest, encode_manifest
from shoal.agent.views.run_format import RunFormatError, RunName
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.run_writer import RunWriter
from shoal.agent.views.view import SortedView, ViewFiles, ViewNotReady
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex

PIECE_BYTES: Final = 256 * 2**10
"""Of one answer: appends to other groups share the link (safety 24)."""
PIECE_TIMEOUT_MS: Final = 5_000
MAX_LENT: Final = 16
"""Views that are being copied from here at the same time."""
LENT_MS: Final = 30_000
"""Runs stay for a copy that asks for nothing more so long; it has died then, or asks another agent."""
RETRIES: Final = 20
RETRY_S: Final = 0.5

_WANTED: Final = struct.Struct("<QQIQ")


class ShipmentFailed(Exception):
    """The view cannot be copied from that peer now. The text says why."""


class Views(Protocol):
    """The views of this agent."""

    def lendable(self, group: GroupId) -> SortedView | None: ...


def encode_piece_wanted(group: GroupId, name: RunName, position: int) -> bytes:
    """The request for bytes of a run from a position on."""
    return group.to_bytes() + _WANTED.pack(*name, position)


def decode_piece_wanted(payload: bytes) -> tuple[GroupId, RunName, int]:
    """Raises PeerMessageError."""
    if len(payload) != GROUP_ID_BYTES + _WANTED.size:
        raise PeerMessageError(f"{len(payload)} bytes about a run of a view")
    first, last, number, position = _WANTED.unpack_from(payload, GROUP_ID_BYTES)
    if not 1 <= first <= last:
        raise PeerMessageError(f"a run of entries {first} to {last} is wanted")
    return decode_group(payload[:GROUP_ID_BYTES]), RunName(LogIndex(first), LogIndex(last), number), position


class _Loan:
    """Runs that a peer copies. They stay until it has asked for nothing for LENT_MS."""

    def __init__(self, view: SortedView) -> None:
        self.stack = ExitStack()
        self.manifest = view.manifest
        self.runs = {run.entry.name: run for run in self.stack.enter_context(view.pinned())}
        self.timer: asyncio.TimerHandle | None = None


class ViewLender:
    """One per host: answers peers."""

    def __init__(self, links: Links, views: Views) -> None:
        self._views = views
        self._loans: dict[tuple[str, GroupId], _Loan] = {}
        links.handle_request(PeerMessage.VIEW_RUNS, self.on_runs)
        links.handle_request(PeerMessage.VIEW_PIECE, self.on_piece)

    async def on_runs(self, peer: str, payload: bytes) -> bytes:
        """The manifest of a view, whose runs stay for a while. Raises ShoalError."""
        group = decode_group(payload)
        view = self._views.lendable(group)
        if view is None:
            raise ShoalError("not-ready", "no view of the group is open here")
        self._end((peer, group))
        if len(self._loans) >= MAX_LENT:
            raise ShoalError("overloaded", f"{MAX_LENT} views are being copied from here already")
        try:
            loan = self._loans[peer, group] = _Loan(view)
        except ViewNotReady as error:
            raise ShoalError("damaged", str(error)) from error
        self._prolong((peer, group), loan)
        return encode_manifest(loan.manifest, view.files.seed)

    async def on_piece(self, peer: str, payload: bytes) -> bytes:
        """Bytes of a run that was named to that peer. Raises ShoalError."""
        group, name, position = decode_piece_wanted(payload)
        loan = self._loans.get((peer, group))
        run = None if loan is None else loan.runs.get(name)
        if loan is None or run is None:
            raise ShoalError("trimmed", f"run {name.file} does not stay here for a copy")
        self._prolong((peer, group), loan)
        try:
            return await run.read_bytes(position, PIECE_BYTES)
        except OSError as error:
            raise ShoalError("damaged", f"run {name.file} cannot be read: {error}") from error

    def _prolong(self, key: tuple[str, GroupId], loan: _Loan) -> None:
        if loan.timer is not None:
            loan.timer.cancel()
        loan.timer = asyncio.get_running_loop().call_later(LENT_MS / 1000, self._end, key)

    def _end(self, key: tuple[str, GroupId]) -> None:
        loan = self._loans.pop(key, None)
        if loan is not None:
            if loan.timer is not None:
                loan.timer.cancel()
            loan.stack.close()

    def stop(self) -> None:
        """Let go of every run."""
        for key in list(self._loans):
            self._end(key)


class ViewBorrower:
    """One per host: copies a peer's runs into a directory of this agent."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def fetch(
        self, peer: str, group: GroupId, view: SortedView, files: ViewFiles, first_number: int
    ) -> tuple[Manifest, list[SortedRun]]:
        """The peer's manifest and its runs, written to `files`, synced and verified, under names of their
        own: numbers from `first_number` on. Raises ShipmentFailed, OSError, Damaged."""
        answer = await self._ask(peer, PeerMessage.VIEW_RUNS, group.to_bytes())
        try:
            manifest = decode_manifest(answer, files.seed)
        except RunFormatError as error:
            raise ShipmentFailed(str(error)) from error
        if manifest.kind is not view.order.kind:
            raise ShipmentFailed("the peer's view is of another kind")
        await files.disk.make_directory(files.directory)
        runs = []
        for number, entry in enumerate(manifest.runs, first_number):
            own = await self._copy(peer, group, files, entry, entry.name._replace(number=number))
            run = await SortedRun.open(files.open_files, files.directory, own, view.order, files.seed)
            await run.verify()
            runs.append(run)
        sequence = first_number + len(runs)
        return manifest._replace(sequence=sequence, runs=tuple(run.entry for run in runs)), runs

    async def _copy(
        self, peer: str, group: GroupId, files: ViewFiles, entry: RunEntry, own_name: RunName
    ) -> RunEntry:
        writer = RunWriter(files.disk, files.directory, own_name)
        try:
            position = 0
            while position < entry.size_bytes:
                wanted = encode_piece_wanted(group, entry.name, position)
                piece = await self._ask(peer, PeerMessage.VIEW_PIECE, wanted)
                if not piece:
                    raise ShipmentFailed(f"run {entry.name.file} is shorter than its manifest says")
                await writer.write(piece)
                position += len(piece)
            return await writer.finish(entry.level, entry.end_offset, entry.rows)
        except BaseException:
            await writer.abandon()
            raise

    async def _ask(self, peer: str, message: PeerMessage, payload: bytes) -> bytes:
        reason = ""
        for _ in range(RETRIES):
            try:
                return await self._links.request(peer, message, payload, PIECE_TIMEOUT_MS)
            except PeerUnavailable as error:
                reason = str(error)
                await asyncio.sleep(RETRY_S)
            except PeerRequestFailed as error:
                raise ShipmentFailed(str(error)) from error
        raise ShipmentFailed(reason)
