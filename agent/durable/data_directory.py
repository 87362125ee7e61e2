"""The data directory: taking it, who lives in it, and giving it up.

Law of this file: each fault of a directory becomes one line that says what to do (StartError). The owners of
the files give them their meaning.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import replace

from shoal.agent.config import MAX_NAME_CHARACTERS, AgentConfig
from shoal.agent.durable.identity import AgentIdentity, new_agent_id
from shoal.agent.process.errors import StartError
from shoal.segment_store.disk.lock import LOCK_FILE, DirectoryLock
from shoal.segment_store.errors import NotOwner

NAME_ID_CHARACTERS = 8
KEYRING_FILE = "gossip-keyring.json"  # keyring_file.py
TOPICS_DIRECTORY = "topics"  # opener.py: where replicas keep their logs


def claim_directory(path: str) -> DirectoryLock:
    """Make the directory if need be, and hold it for this process. Raises StartError."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)  # records are in it
        lock = DirectoryLock(path)
        lock.acquire()
    except NotOwner as error:
        raise StartError(f"{error}: stop that agent, or give another --data") from None
    except (FileExistsError, NotADirectoryError):
        raise StartError(f"{path} is not a directory: give another --data") from None
    except OSError as error:
        raise StartError(
            f"cannot write to {path} ({error.strerror}): give --data a directory that this user may write"
        ) from None
    return lock


def wipe(path: str) -> None:
    """Empty the directory but for its lock and the gossip keys, which other clusters ask for. Only for a
    cluster that was sealed without ever having held a topic."""
    # The identity last: without it, what a crash left of the rest would be nobody's.
    for name in sorted(os.listdir(path), key=lambda name: name.startswith("identity")):
        if name in (LOCK_FILE, KEYRING_FILE):
            continue
        victim = os.path.join(path, name)
        if os.path.isdir(victim) and not os.path.islink(victim):
            shutil.rmtree(victim)
        else:
            os.unlink(victim)


def machine_boot_id() -> str:
    """Of the machine's present run, a new one with each; empty where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def settle_identity(config: AgentConfig, known: AgentIdentity | None) -> AgentIdentity:
    """The identity in the directory, or a new one; a given name replaces the old one. StartError when there
    are logs of an unknown agent: under another id they would be nobody's."""
    if known is None:
        logs = os.path.join(config.data, TOPICS_DIRECTORY)
        if os.path.isdir(logs) and os.listdir(logs):
            raise StartError(
                f"{config.data} holds logs but not the identity of the agent that wrote them: restore"
                " identity.a or identity.b, or give another --data"
            )
        agent_id = new_agent_id()
        return AgentIdentity(agent_id, None, config.name or default_name(socket.gethostname(), agent_id))
    if config.name is not None and config.name != known.name:
        return replace(known, name=config.name)
    return known


def default_name(host: str, agent_id: str) -> str:
    """HOST-xxxxxxxx, the host's name without its domain and in the alphabet of names."""
    return f"{host_name(host)}-{agent_id[:NAME_ID_CHARACTERS]}"


def host_name(host: str) -> str:
    """The host's name without its domain, in the alphabet of names, short enough to be part of one."""
    short = re.sub(r"[^A-Za-z0-9_-]+", "-", host.split(".")[0]).strip("-_") or "agent"
    return short[: MAX_NAME_CHARACTERS - NAME_ID_CHARACTERS - 1]
