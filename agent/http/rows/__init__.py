"""Stored batches as rows of an answer: which of them, and their text in short slices of the loop."""
