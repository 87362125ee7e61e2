"""One agent: the composition root (agent.py), its configuration, the door for front ends (interface.py)."""

if __name__ != "shoal.agent":
    raise ImportError("import this package as shoal.agent: the folder stands at the top, the name does not")
