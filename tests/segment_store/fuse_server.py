"""A small file system for tests, served over /dev/fuse: the real calls of a real program meet a disk that
loses, keeps or tears what was not synced, and fails when it is told to.

The kernel's messages are packed by hand (linux/fuse.h, protocol 7.31): there are thirty of them, and no
package. What a power failure does to bytes is memory_disk.py's model, sector by sector; names made or removed
since their directory's last sync may or may not be. The server is a process of its own, so that a blocked
call of the program under test never waits for itself; it is told what to do over a socket, one JSON line
each way.
"""

import contextlib
import ctypes
import errno
import json
import os
import random
import select
import socket
import stat
import struct
import traceback
from collections.abc import Callable
from typing import Any

from memory_disk import SECTOR_BYTES, _Inode

from shoal.segment_store.disk.system_calls import RELEASE_MODE

DEVICE = "/dev/fuse"
MAX_WRITE_BYTES = 128 * 1024  # larger writes come in pieces, between which the power may fail
ROOT = 1
CAPACITY_BYTES = 2**30
_MS_NOSUID_NODEV = 2 | 4
_MNT_DETACH = 2
_DIRECT_IO = 1
_BIG_WRITES, _MAX_PAGES, _INIT_EXT = 1 << 5, 1 << 22, 1 << 30
_SIZE_IS_SET = 1 << 3
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_libc = ctypes.CDLL(None, use_errno=True)


class Node:
    """A directory when `children` is not None, else a file."""

    def __init__(self, number: int, *, is_directory: bool) -> None:
        self.number = number
        self.inode = _Inode()
        self.children: dict[str, Node] | None = {} if is_directory else None
        self.durable: dict[str, Node] = {}
        self.changes: list[Callable[[], object]] = []  # of names, since the last sync of this directory


class Tree:
    """What the disk holds, and what it would hold after a power failure."""

    def __init__(self) -> None:
        self.root = Node(ROOT, is_directory=True)
        self.nodes = {ROOT: self.root}
        self.capacity_bytes = CAPACITY_BYTES

    def make(self, parent: Node, name: str, *, is_directory: bool) -> Node:
        node = Node(len(self.nodes) + 1, is_directory=is_directory)
        self.nodes[node.number] = node
        self.link(parent, name, node)
        return node

    def link(self, parent: Node, name: str, node: Node) -> None:
        assert parent.children is not None
        parent.children[name] = node
        parent.changes.append(lambda: parent.durable.__setitem__(name, node))

    def unlink(self, parent: Node, name: str) -> Node:
        assert parent.children is not None
        node = parent.children.pop(name)
        parent.changes.append(lambda: parent.durable.pop(name, None))
        return node

    def rename(self, old: Node, old_name: str, new: Node, new_name: str) -> None:
        """One change, in the directory that gets the name: never neither name."""
        assert old.children is not None
        assert new.children is not None
        node = new.children[new_name] = old.children.pop(old_name)

        def change() -> None:
            old.durable.pop(old_name, None)
            new.durable[new_name] = node

        new.changes.append(change)

    def files(self) -> list[Node]:
        """Those that have a name, in the order of their making."""
        found: list[Node] = []
        directories = [self.root]
        while directories:
            for _, node in sorted((directories.pop().children or {}).items()):
                (directories if node.children is not None else found).append(node)
        return found

    def used_bytes(self) -> int:
        return sum(len(node.inode.content) for node in self.files())

    def crash(self, rng: random.Random) -> None:
        """The power fails and comes back."""
        directories = [self.root]
        while directories:
            node = directories.pop()
            for change in node.changes:
                if rng.random() < 0.5:
                    change()
            node.changes.clear()
            node.children = dict(node.durable)
            directories += [child for child in node.children.values() if child.children is not None]
        for node in self.files():
            node.inode.crash(rng)


class Server:
    """One mount over one tree; `serve` until the socket closes."""

    def __init__(self, mount_point: str, control: socket.socket) -> None:
        self.tree = Tree()
        self.faults: list[dict[str, Any]] = []
        self.operations_left = -1  # until the power fails; -1: it does not
        self.counts: dict[str, int] = {}
        self.is_direct = True
        self._mount_point = mount_point
        self._control = control
        self._lines = control.makefile("rw")
        self._fd = -1

    def mount(self) -> None:
        self._fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        arguments = b"fuse-test", self._mount_point.encode(), b"fuse.test", _MS_NOSUID_NODEV, options.encode()
        if _libc.mount(*arguments):
            raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")

    def unmount(self) -> None:
        """Whoever still has a file open gets errors from now on."""
        os.close(self._fd)
        if _libc.umount2(self._mount_point.encode(), _MNT_DETACH):
            raise OSError(ctypes.get_errno(), f"umount: {os.strerror(ctypes.get_errno())}")

    def serve(self) -> None:
        self.mount()
        try:
            while True:
                ready, _, _ = select.select([self._fd, self._control], [], [])
                if self._fd in ready:
                    self._serve_one()
                elif not self._obey():
                    return
        finally:
            self.unmount()

    # ---- what the test asks

    def _obey(self) -> bool:
        line = self._lines.readline()
        if not line:
            return False
        request = json.loads(line)
        answer = getattr(self, f"do_{request.pop('do')}")(**request)
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()
        return True

    def do_fault(self, **fault: Any) -> None:
        """See _next_fault."""
        self.faults.append(fault)

    def do_heal(self) -> int:
        """No fault any more; how many times the ones that were there have struck."""
        struck = sum(fault.get("struck", 0) for fault in self.faults)
        self.faults.clear()
        return struck

    def do_fail_after(self, operations: int) -> None:
        self.operations_left = operations

    def do_crash(self, seed: int) -> None:
        """The power fails, whatever was promised; the same disk is mounted again."""
        self.unmount()
        self.tree.crash(random.Random(seed))
        self.operations_left = -1
        self.mount()

    def do_direct(self, on: bool) -> None:
        """Whether files opened from now on go around the page cache."""
        self.is_direct = on

    def do_capacity(self, size: int) -> None:
        self.tree.capacity_bytes = size

    def do_used(self) -> int:
        return self.tree.used_bytes()

    def do_counts(self) -> dict[str, int]:
        """Operations by kind, since the last time this was asked."""
        counts, self.counts = self.counts, {}
        return counts

    def do_flip(self, path: str, position: int) -> None:
        """One bit of what the disk holds; the kernel is not told."""
        node = self.tree.root
        for name in path.split("/"):
            assert node.children is not None
            node = node.children[name]
        node.inode.content[position] ^= 1

    # ---- what the kernel asks

    def _serve_one(self) -> None:
        try:
            message = os.read(self._fd, MAX_WRITE_BYTES + 4096)
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                raise
            return
        length, opcode, unique, number, *_ = _IN.unpack_from(message)
        name = OPERATIONS.get(opcode, "unknown")
        if name in ("forget", "interrupt"):
            return
        self.counts[name] = self.counts.get(name, 0) + 1
        body = message[_IN.size : length]
        try:
            if name == "unknown":
                raise OSError(errno.ENOSYS, f"operation {opcode}")
            reply = self._carry_out(name, number, body)
            code = 0
        except OSError as error:
            code, reply = -(error.errno or errno.EIO), b""
        with contextlib.suppress(FileNotFoundError):  # who asked was killed meanwhile
            os.write(self._fd, _OUT.pack(_OUT.size + len(reply), code, unique) + reply)

    def _carry_out(self, name: str, number: int, body: bytes) -> bytes:
        if name in COUNTED and self.operations_left >= 0:
            if self.operations_left == 0:
                raise OSError(errno.EIO, "the power failed")
            self.operations_left -= 1
        node = self.tree.nodes[number] if number else self.tree.root
        fault = self._next_fault(name)
        if fault is not None and "short" in fault and name == "write":
            body = _shortened(body, fault["short"])
        elif fault is not None:
            if name == "sync":
                node.inode.dirty.clear()  # as Linux does: the pages are clean, the disk never got them
            raise OSError(fault["errno"], "asked for")
        reply: bytes = getattr(self, f"on_{name}")(node, body)
        return reply

    def _next_fault(self, name: str) -> dict[str, Any] | None:
        """{"operation", "errno" or "short" (bytes a write accepts), "skip", "times"}."""
        for fault in self.faults:
            if fault["operation"] != name or not fault.get("times", 1):
                continue
            if fault.get("skip", 0):
                fault["skip"] -= 1
                continue
            fault["times"] = fault.get("times", 1) - 1
            fault["struck"] = fault.get("struck", 0) + 1
            return fault
        return None

    def on_init(self, node: Node, body: bytes) -> bytes:
        _, _, readahead, flags = struct.unpack_from("<IIII", body)
        wanted = flags & (_BIG_WRITES | _MAX_PAGES)
        pages = MAX_WRITE_BYTES // 4096
        return struct.pack(
            "<IIIIHHIIHHI28x", 7, 31, readahead, wanted, 16, 12, MAX_WRITE_BYTES, 1, pages, 0, 0
        )

    def on_lookup(self, node: Node, body: bytes) -> bytes:
        return self._entry(self._child(node, _name(body)))

    def on_getattr(self, node: Node, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node)

    def on_setattr(self, node: Node, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & _SIZE_IS_SET:
            # The store never cuts a file; the kernel does, to the old length, when a write behind it failed.
            content, dirty = node.inode.content, node.inode.dirty
            assert size == len(content) or size % SECTOR_BYTES == 0 or not dirty.get(size // SECTOR_BYTES)
            content[size:] = bytes(max(0, size - len(content)))
            node.inode.lengths = [*(length for length in node.inode.lengths if length < size), size]
            for sector in [sector for sector in dirty if sector * SECTOR_BYTES >= size]:
                del dirty[sector]
        return self.on_getattr(node, body)

    def on_mkdir(self, node: Node, body: bytes) -> bytes:
        return self._entry(self.tree.make(node, _name(body[8:]), is_directory=True))

    def on_create(self, node: Node, body: bytes) -> bytes:
        made = self.tree.make(node, _name(body[16:]), is_directory=False)
        return self._entry(made) + self._opened()

    def on_open(self, node: Node, body: bytes) -> bytes:
        return self._opened()

    on_opendir = on_open

    def on_read(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(node.inode.content[offset : offset + size])

    def on_write(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        self._check_room(node, offset + size)
        node.inode.write(offset, body[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def on_allocate(self, node: Node, body: bytes) -> bytes:
        _, offset, length, mode = struct.unpack_from("<QQQI", body)
        if mode == RELEASE_MODE:
            end = min(offset + length, len(node.inode.content))
            if end > offset:
                node.inode.write(offset, bytes(end - offset))
            return b""
        assert not mode
        self._check_room(node, offset + length)
        node.inode.grow(offset + length)
        return b""

    def on_sync(self, node: Node, body: bytes) -> bytes:
        for sector, versions in node.inode.dirty.items():
            node.inode.durable[sector] = versions[-1][1]
        node.inode.dirty.clear()
        node.inode.durable_size = len(node.inode.content)
        node.inode.lengths.clear()
        return b""

    def on_syncdir(self, node: Node, body: bytes) -> bytes:
        for change in node.changes:
            change()
        node.changes.clear()
        return b""

    def on_unlink(self, node: Node, body: bytes) -> bytes:
        self._child(node, _name(body))
        self.tree.unlink(node, _name(body))
        return b""

    def on_rmdir(self, node: Node, body: bytes) -> bytes:
        if self._child(node, _name(body)).children:
            raise OSError(errno.ENOTEMPTY, "not empty")
        return self.on_unlink(node, body)

    def on_rename(self, node: Node, body: bytes, skip: int = 8) -> bytes:
        target = self.tree.nodes[struct.unpack_from("<Q", body)[0]]
        old, new = (name.decode() for name in body[skip:].split(b"\0")[:2])
        self._child(node, old)
        self.tree.rename(node, old, target, new)
        return b""

    def on_rename2(self, node: Node, body: bytes) -> bytes:
        return self.on_rename(node, body, skip=16)

    def on_readdir(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        reply = b""
        names = sorted((node.children or {}).items())
        for place, (name, child) in list(enumerate(names))[offset:]:
            kind = 4 if child.children is not None else 8
            data = struct.pack("<QQII", child.number, place + 1, len(name), kind) + name.encode()
            data += bytes(-len(data) % 8)
            if len(reply) + len(data) > size:
                break
            reply += data
        return reply

    def on_statfs(self, node: Node, body: bytes) -> bytes:
        free = max(0, self.tree.capacity_bytes - self.tree.used_bytes()) // 4096
        total = self.tree.capacity_bytes // 4096
        return struct.pack("<QQQQQIIII24x", total, free, free, 10**6, 10**6, 4096, 255, 4096, 0)

    def on_done(self, node: Node, body: bytes) -> bytes:
        """Flush, release and their like change nothing."""
        return b""

    on_flush = on_done

    def _child(self, node: Node, name: str) -> Node:
        found = (node.children or {}).get(name)
        if found is None:
            raise OSError(errno.ENOENT, name)
        return found

    def _check_room(self, node: Node, end: int) -> None:
        growth = max(0, end - len(node.inode.content))
        if growth and self.tree.used_bytes() + growth > self.tree.capacity_bytes:
            raise OSError(errno.ENOSPC, "full")

    def _opened(self) -> bytes:
        return struct.pack("<QII", 0, _DIRECT_IO if self.is_direct else 0, 0)

    def _entry(self, node: Node) -> bytes:
        return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + self._attributes(node)

    def _attributes(self, node: Node) -> bytes:
        size = len(node.inode.content)
        mode = (stat.S_IFDIR | 0o755) if node.children is not None else (stat.S_IFREG | 0o644)
        owner = os.getuid(), os.getgid()
        times = (0,) * 6
        return struct.pack(
            "<QQQQQQIIIIIIIIII", node.number, size, -(-size // 512), *times, mode, 1, *owner, 0, 4096, 0
        )


OPERATIONS = {
    1: "lookup",
    2: "forget",
    3: "getattr",
    4: "setattr",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "done",  # release
    20: "sync",
    25: "flush",
    26: "init",
    27: "opendir",
    28: "readdir",
    29: "done",  # releasedir
    30: "syncdir",
    35: "create",
    36: "interrupt",
    38: "done",  # destroy
    42: "forget",
    43: "allocate",
    45: "rename2",
}
COUNTED = {"write", "sync", "syncdir", "create", "unlink", "rename", "rename2", "allocate", "mkdir", "rmdir"}


def _name(body: bytes) -> str:
    return body.split(b"\0", 1)[0].decode()


def _shortened(body: bytes, size: int) -> bytes:
    """A write that accepts fewer bytes than it was given."""
    fh, offset, wanted = struct.unpack_from("<QQI", body)
    return struct.pack("<QQI", fh, offset, min(size, wanted)) + body[20:]


def enter_namespace() -> None:
    """Mounts of this process and its children are seen by nobody else, and end with them."""
    clone_newns, clone_newuser = 0x0002_0000, 0x1000_0000
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(clone_newns | (0 if uid == 0 else clone_newuser)):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    recursive, private = 0x4000, 0x4_0000
    if _libc.mount(b"none", b"/", None, recursive | private, None):
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")


class FuseDisk:
    """The test's end: a mounted directory, and what the disk under it is told to do."""

    def __init__(self, directory: str) -> None:
        self.root = directory
        mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            mine.close()
            try:
                Server(directory, theirs).serve()
            except BaseException:  # noqa: BLE001 (this process ends here, whatever it was)
                traceback.print_exc()
            os._exit(0)
        theirs.close()
        self._socket = mine
        self._lines = mine.makefile("rw")
        self.ask("counts")

    def ask(self, do: str, **arguments: Any) -> Any:
        """See Server.do_*."""
        self._lines.write(json.dumps({"do": do, **arguments}) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        assert line, "the server of the file system has ended; its error stands above"
        return json.loads(line)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        os.waitpid(self.pid, 0)
