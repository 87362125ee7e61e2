"""The gossip keyring on disk: DATA/gossip-keyring.json, for its owner's eyes only.

Law of this file: bytes and permissions, and which source of keys counts at the start. The file has Serf's
form: a JSON list of keys in base64, the primary one first.

Once there is a file, it decides. A rotation is written into it; a start with an old flag must neither bring
back a removed key nor lose the one in use.
"""

from __future__ import annotations

import logging
import os
import stat

from shoal.agent.config import AgentConfig
from shoal.agent.durable.data_directory import KEYRING_FILE
from shoal.agent.process.errors import StartError
from shoal.credentials import read_private
from shoal.errors import ClientError
from shoal.membership.wire.keyring import MAX_KEYRING_BYTES, Keyring, KeyringError, parse_key

FOR_THE_OWNER = 0o600
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
ADVICE = "`shoal keygen` prints a key"

logger = logging.getLogger("shoal.agent")


class KeyringFile:
    """One agent's keyring file. Blocking: call it in a thread once the agent runs."""

    def __init__(self, data: str) -> None:
        self.path = os.path.join(data, KEYRING_FILE)

    def load(self) -> Keyring | None:
        """None when there is none. Raises StartError for one that cannot be used: without keys, all that this
        agent gossips could be read."""
        try:
            with open(self.path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(MAX_KEYRING_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StartError(f"cannot read {self.path}: {error.strerror or error}") from None
        if mode & FOR_OTHERS:
            logger.warning("%s could be read by others (mode %o): closed it to them", self.path, mode)
            os.chmod(self.path, FOR_THE_OWNER)
        try:
            if len(text) > MAX_KEYRING_BYTES:
                raise KeyringError(f"more than {MAX_KEYRING_BYTES} bytes")
            return Keyring.from_json(text.decode())
        except (KeyringError, UnicodeDecodeError):
            raise StartError(
                f"{self.path} is no keyring: put back a good one, or remove it and give --gossip-key"
            ) from None

    def save(self, keyring: Keyring) -> None:
        """Whole or not at all, and on the disk when this returns. Raises OSError."""
        temporary = f"{self.path}.new"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FOR_THE_OWNER)
        with open(handle, "wb") as file:
            os.fchmod(handle, FOR_THE_OWNER)  # O_CREAT's mode is for new files only
            file.write(keyring.to_json().encode())
            file.flush()
            os.fsync(handle)
        os.replace(temporary, self.path)
        directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def settle_keyring(config: AgentConfig, file: KeyringFile) -> Keyring | None:
    """The keyring to start with: the file's, else the given key, which is then kept. None: gossip is not
    sealed. Raises StartError."""
    given = _given_key(config)
    kept = file.load()
    if kept is None and given is not None:
        kept = Keyring((given,))
        try:
            file.save(kept)
        except OSError as error:
            raise StartError(f"cannot write {file.path}: {error.strerror or error}") from None
    elif kept is not None and given is not None and given not in kept.keys:
        logger.warning(
            "--gossip-key is not in %s, whose keys are used: if this agent has missed a rotation, remove that"
            " file and give the new key",
            file.path,
        )
    return kept


def _given_key(config: AgentConfig) -> bytes | None:
    text = config.pool.gossip_key
    if text is None:
        return None
    try:
        if text.startswith("@"):
            text = read_private(text[1:], "the gossip key", is_read_once=True)
        return parse_key(text)
    except ClientError as error:
        raise StartError(f"--gossip-key: {error}; {ADVICE} to put there") from None
    except KeyringError:
        raise StartError(
            f"--gossip-key is not 16, 24 or 32 bytes in base64: {ADVICE}, and @FILE names a file of one"
        ) from None
