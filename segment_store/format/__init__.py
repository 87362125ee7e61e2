"""The bytes of a segment: names, tail records, indexes, and what is torn or damaged. Pure."""
