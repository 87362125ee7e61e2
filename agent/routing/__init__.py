"""Leaders and holders of partitions, as all agents say it of themselves."""
