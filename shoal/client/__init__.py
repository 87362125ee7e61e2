"""The Python clients: asyncio, and blocking on a thread of its own."""
