"""Stored bytes compared with what they should be: scrubbing, repair, and logs that are stopped."""
