"""Gossip on the wire format of Serf: a pool of members, their tags, events and queries."""

if __name__ != "shoal.membership":
    raise ImportError(
        "import this package as shoal.membership: the folder stands at the top, the name does not"
    )
