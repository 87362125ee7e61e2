"""Gossip's sockets: UDP, TCP and mDNS around the pure cores."""
