"""The audit's way from an agent's buffer into the topic `_audit`."""
