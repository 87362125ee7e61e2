"""`shoal top`: agents, topics and partitions with rates and lags, live. command.py and screen.py act."""
