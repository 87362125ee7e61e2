"""Admission: origins, connections, bodies and answers, each within its bound.

Law of this room: bounds, their reasons, and the gates that enforce them. It knows no route.
"""
