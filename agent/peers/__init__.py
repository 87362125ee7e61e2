"""Links between agents: connections, frames and messages."""
