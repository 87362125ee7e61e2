"""`shoal bench`: what the user's own cluster does, beside bare sockets in the same run."""
