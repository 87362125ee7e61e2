"""Records on their way to a cluster: gathered, batched, delivered once."""
