"""The HTTP API as a table: its routes, parameters, bodies and answers, once.

Law of this room: pure values. The router and the description are both made from it.
"""
