"""`shoal secure`: certificates, keys and configurations of a secured cluster."""
