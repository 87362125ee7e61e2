"""The safety rules of the design and the proof that tests hold them."""
