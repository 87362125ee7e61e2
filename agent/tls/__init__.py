"""TLS: names in certificates, contexts from files, listening, exchange of files while the agent runs."""
