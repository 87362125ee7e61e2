"""One partition's log in segment files: written, read, cut, recycled."""
