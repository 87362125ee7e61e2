"""Requests to agents: connections, routes, retries."""
