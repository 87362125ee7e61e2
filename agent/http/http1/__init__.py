"""HTTP/1.1 as bytes (RFC 9112), without sockets: the heads, the bodies' ends, one connection's states."""
