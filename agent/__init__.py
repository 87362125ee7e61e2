"""See the code map in ARCHITECTURE.md."""

if __name__ != "shoal.agent":
    raise ImportError("import this package as shoal.agent: the folder stands at the top, the name does not")
