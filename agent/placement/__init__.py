"""Which agent holds and leads what: where groups belong, and one safe step at a time towards that."""
