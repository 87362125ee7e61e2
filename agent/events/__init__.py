"""Changes, as a counter that is waited for and as a feed that is followed."""
