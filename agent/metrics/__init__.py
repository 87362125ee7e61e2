"""The numbers of an agent: families by name, counters where things happen, and their text to scrape.

Any room may count. Nothing here knows whom it counts for, and nothing of it runs by itself.
"""
