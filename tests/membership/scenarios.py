"""Stories of a pool as command scripts with printed outcomes: testdata/*.txt.

Law of this file: read a script, run it, print what was said and heard. To put the outcomes of today into the
files, and review them as a diff: python tests/membership/scenarios.py --rewrite

scenario_files.py says what a file looks like. The commands:

    pool members=3        begin: everybody knows everybody; also profile=local, seed=2
    pass MS               time passes; what members heard, with the milliseconds since the pool began
    talk MS               the same with every packet that says anything but ping, ack and nack
    probes MS             the same with those, too
    kill N, pause N MS, freeze N MS, jump N MS, leave N, restart N
    cut A B               what A sends to B is lost; cut A,B C,D cuts all of them
    part A,B C            nothing passes in either direction
    heal
    force-leave A B       A says that B has left
    lists                 one line for each living member
"""

import pathlib
import sys
from collections.abc import Callable

if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
    sys.path.insert(0, str(ROOT))

from shoal.membership.config import GossipConfig
from shoal.membership.swim.ready import Exchange, OutgoingPacket
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import (
    Ack,
    Alive,
    Dead,
    IndirectPing,
    Message,
    Nack,
    Ping,
    Suspect,
    User,
)
from shoal.membership.wire.packets import decode_packet, encode_packet
from shoal.membership.wire.serf import JoinIntent, LeaveIntent, decode_serf
from tests.membership.pool import Pool, Process
from tests.scenario_files import rewrite

TESTDATA = pathlib.Path(__file__).resolve().parent / "testdata"
TALK, PROBES = 1, 2


class Told(Pool):
    """A pool that says what is said in it."""

    told: list[str]
    depth = 0

    def _send(self, sender: Process, packet: OutgoingPacket) -> None:
        receiver = self._receiver(packet.receiver)
        if self.depth and receiver is not None and not sender.blocked:
            messages = decode_packet(encode_packet(packet.parts, checksum=packet.checksum)).messages
            words = [describe(message) for message in messages if self.depth == PROBES or is_news(message)]
            lost = "" if self._passes(sender, receiver) and not receiver.paused else "  (lost)"
            if words:
                self.told.append(
                    f"{self.now_ms:>6} {sender.name} -> {receiver.name}  {', '.join(words)}{lost}"
                )
        super()._send(sender, packet)

    def _exchange(self, process: Process, exchange: Exchange, *, joined: bool = False) -> None:
        peer = self._receiver(exchange.endpoint)
        if self.depth and peer is not None:
            reached = self._passes(process, peer) and self._passes(peer, process)
            lost = "" if reached else "  (not reached)"
            self.told.append(f"{self.now_ms:>6} {process.name} <> {peer.name}  whole state{lost}")
        super()._exchange(process, exchange, joined=joined)

    def _note(self, *words: object) -> None:
        super()._note(*words)
        if "HEARS" in words:
            observer, _, kind, member = words
            self.told.append(f"{self.now_ms:>6} {observer} shows {member} {kind}")


def is_news(message: Message) -> bool:
    """Not a part of probing."""
    return not isinstance(message, Ping | Ack | Nack | IndirectPing)


def describe(message: Message) -> str:
    """What matters of it, without sequence numbers."""
    match message:
        case Ping(_, node):
            return f"ping {node}"
        case IndirectPing():
            return f"ping {message.node} for me"
        case Suspect(incarnation, node, accuser) | Dead(incarnation, node, accuser):
            return f"{type(message).__name__.lower()} {node}/{incarnation} says {accuser}"
        case Alive(incarnation, node):
            return f"alive {node}/{incarnation}"
        case User(payload):
            return describe_user(payload)
        case _:
            return type(message).__name__.lower()


def describe_user(payload: bytes) -> str:
    """Serf's intents, by their Lamport time."""
    try:
        intent = decode_serf(payload)
    except WireError:
        return "user message"
    match intent:
        case JoinIntent(ltime, node):
            return f"join {node} @{ltime}"
        case LeaveIntent(ltime, node):
            return f"leave {node} @{ltime}"
        case _:
            return type(intent).__name__


class Script:
    """Runs commands; each gives the lines it prints."""

    def __init__(self) -> None:
        self._pool: Told

    def run(self, command: str) -> list[str]:
        """Carry one command out: what was said and heard meanwhile, or what it was asked to show."""
        name, *arguments = command.split()
        action: Callable[..., list[str] | None] = getattr(self, f"_do_{name.replace('-', '_')}")
        if name != "pool":
            self._pool.told = []
        shown = action(*arguments)
        return self._pool.told if shown is None else shown

    def _do_pool(self, *options: str) -> list[str]:
        given = dict(option.split("=", 1) for option in options)
        Told.told = []
        self._pool = Told(
            int(given.get("members", "3")),
            int(given.get("seed", "1")),
            profile=getattr(GossipConfig, given.get("profile", "lan")),
            delay_ms=(5, 5),
            acquainted=True,
        )
        return self._do_lists()

    def _do_pass(self, duration_ms: str, depth: int = 0) -> None:
        self._pool.depth = depth
        self._pool.run_for(int(duration_ms))

    def _do_talk(self, duration_ms: str) -> None:
        self._do_pass(duration_ms, TALK)

    def _do_probes(self, duration_ms: str) -> None:
        self._do_pass(duration_ms, PROBES)

    def _do_kill(self, name: str) -> None:
        self._pool.kill(name)

    def _do_pause(self, name: str, duration_ms: str) -> None:
        self._pool.pause(name, int(duration_ms))

    def _do_freeze(self, name: str, duration_ms: str) -> None:
        self._pool.freeze(name, int(duration_ms))

    def _do_jump(self, name: str, by_ms: str) -> None:
        self._pool.depth = TALK
        self._pool.jump(name, int(by_ms))

    def _do_leave(self, name: str) -> None:
        self._pool.leave(name)

    def _do_restart(self, name: str) -> None:
        self._pool.depth = TALK
        self._pool.restart(name)

    def _do_cut(self, senders: str, receivers: str) -> None:
        for sender in senders.split(","):
            for receiver in receivers.split(","):
                self._pool.cut(sender, receiver)

    def _do_part(self, one: str, other: str) -> None:
        self._pool.partition(one.split(","), other.split(","))

    def _do_heal(self) -> None:
        self._pool.heal()

    def _do_force_leave(self, sender: str, name: str) -> None:
        process = self._pool.processes[sender]
        process.core.force_leave(name, self._pool.clock_ms(process))
        self._pool._carry_out(process)

    def _do_lists(self) -> list[str]:
        lines = []
        for process in self._pool.alive():
            shown = (
                f"{member.name}={member.shown_status}/{member.incarnation}"
                for member in process.core.members()
            )
            lines.append(f"{process.name}: {' '.join(shown)}")
        return lines


if __name__ == "__main__":
    assert sys.argv[1:] == ["--rewrite"], __doc__
    rewrite(TESTDATA, Script)
