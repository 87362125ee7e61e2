"""Records on their way to a user: fetched ahead, in order, from a place that can be kept."""
