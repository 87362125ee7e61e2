"""A Serf agent that gossips for this process, asked over its RPC."""
