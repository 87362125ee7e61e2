"""The issuer of JWTs: where its keys stand, and how they are read."""
