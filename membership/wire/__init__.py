"""The bytes of gossip: packets, streams, messages, seals. Pure; a decoder accepts or raises its one error."""
