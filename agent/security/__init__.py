"""Permissions: needs, rules, identities. Pure, and for any room."""
