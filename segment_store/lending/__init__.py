"""Stored bytes that are sent from the page cache, neither copied nor checked again, behind one seam."""
