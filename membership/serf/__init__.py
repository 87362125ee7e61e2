"""Serf's layer: events, queries, keys and the member list, on SWIM.

Law of this room: pure. A message or the time comes in; what is to be sent and told comes out.
"""
