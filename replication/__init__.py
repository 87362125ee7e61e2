"""See the code map in ARCHITECTURE.md."""

if __name__ != "shoal.replication":
    raise ImportError("import this package as shoal.replication: the folder stands at the top, the name does not")
