"""Who leads and holds which partition, as all agents say it of themselves."""
