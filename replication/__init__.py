"""Raft per partition: entirely pure. Reading order: raft.py, ready.py, transitions.py, then the roles.

The duties of a driver, which has one RaftCore per replica:

- feed it: step() with each message (its frames put aside, keyed by (index, term)), wake() at deadline(),
  after all input already received was stepped; propose() and its kin
- after each turn, take ready() until it is None, and carry each out in the order of ready.py
- call advance() for each ready, in order, once its disk work and that of those before it is synced
- start it from the disk as found: hard state and log, everything unsynced rewritten and synced first (safety
  11)
- tell it when an agent falls silent, or says that its replica of the group has stopped: peer_silent(), once
  in each heartbeat interval for as long as it lasts
- a failed write or sync is the end of the replica: no advance(), and no more messages than its last_words()

The core asserts on its driver's mistakes. It never asserts on what arrives: that is dropped, and counted if
no correct replica could have sent it.
"""

if __name__ != "shoal.replication":
    raise ImportError(
        "import this package as shoal.replication: the folder stands at the top, the name does not"
    )
