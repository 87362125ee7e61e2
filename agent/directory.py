"""The first stage of an agent: its data directory is locked, read, and found to be this agent's.

Law of this file: it reads what earlier runs left and settles it with the configuration. The only change to
the directory is the note of the machine's boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from shoal.agent.config import AgentConfig
from shoal.agent.durable.data_directory import claim_directory, machine_boot_id, settle_identity
from shoal.agent.durable.gossip_snapshot import load_snapshot
from shoal.agent.durable.identity import AgentIdentity, IdentityStore
from shoal.agent.durable.ids import IdentityError
from shoal.agent.durable.keyring_file import KeyringFile, settle_keyring
from shoal.agent.levels import LevelRange, refusal
from shoal.agent.process.errors import StartError
from shoal.agent.security.posture import Exposure, refused_start
from shoal.agent.topics.cluster_file import ClusterFileError, ClusterRecord, load_cluster, settle_cluster
from shoal.membership.serf.snapshot import Snapshot
from shoal.membership.wire.keyring import Keyring
from shoal.segment_store.disk.disk import Disk, open_disk


@dataclass(frozen=True, slots=True)
class Directory:
    """The contents of the directory.

    `config`: with the cluster that the directory belongs to. `record`: None while it belongs to none.
    `power_held`: the machine has been on since this agent last ran here.
    """

    config: AgentConfig
    disk: Disk
    identities: IdentityStore
    identity: AgentIdentity
    record: ClusterRecord | None
    snapshot: Snapshot
    keyring: Keyring | None
    power_held: bool
    exposure: Exposure


async def open_directory(
    config: AgentConfig, parts: AsyncExitStack, before_release: Callable[[], None], levels: LevelRange
) -> Directory:
    """`before_release` is called when all of it is closed again and still locked. Raises StartError, also
    for a cluster whose level is not among the `levels` that this agent understands, and for an agent that
    others reach without protection."""
    lock = claim_directory(config.data)
    parts.callback(lock.release)
    parts.callback(before_release)
    keyring = await asyncio.to_thread(settle_keyring, config, KeyringFile(config.data))
    try:
        disk = await open_disk("threads" if config.disk == "threads" else "ring")
        parts.push_async_callback(disk.close)
        identities = await IdentityStore.open(disk, config.data)
        parts.push_async_callback(identities.close)
        known = identities.load()
        power_held = await identities.note_machine_boot(machine_boot_id())
        record = await load_cluster(disk, config.data)
        snapshot = await load_snapshot(disk, config.data)
    except (IdentityError, ClusterFileError) as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot use {config.data}: {error.strerror or error}") from None
    if record is not None and (known is None or known.cluster_id != record.cluster_id):
        # A crash between the two writes of joining: the identity decides, and it had not joined.
        record = None
    if record is not None and (reason := refusal(levels, record.level)):
        raise StartError(f"cluster {record.cluster}: {reason}")
    config = settle_cluster(config, record)
    exposure = config.exposure(has_gossip_key=keyring is not None)
    if exposure.is_insecure and not config.security.insecure:
        raise StartError(refused_start(exposure, config.cluster, config.advertised_host))
    identity = settle_identity(config, known)
    return Directory(config, disk, identities, identity, record, snapshot, keyring, power_held, exposure)
