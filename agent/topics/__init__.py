"""The catalog: which topics exist, with which settings and births, and what the agent does for them.

Law of this room: catalog.py, entries.py, kept.py, settings.py and catalog_pull.py are pure; the others drive
them.
"""
