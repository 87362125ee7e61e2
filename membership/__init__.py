"""See the code map in ARCHITECTURE.md."""

if __name__ != "shoal.membership":
    raise ImportError(
        "import this package as shoal.membership: the folder stands at the top, the name does not"
    )
