"""Parts that every handler needs: the request at hand, its parameters and body, the answer, the way to a
leader."""
