"""Sorted views of one partition: its committed records in another order, in files beside its log.

Law of this room: a view is a replica's own and made from the committed log alone. The log stays as it is, and
says who leads and what is committed; this room knows neither leaders nor consumers nor HTTP.
"""
