"""See the code map in ARCHITECTURE.md."""

if __name__ != "shoal.segment_store":
    raise ImportError("import this package as shoal.segment_store: the folder stands at the top, the name does not")
