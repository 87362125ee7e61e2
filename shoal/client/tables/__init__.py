"""Tables: rows by key, put, deleted and compared at the leaders of their partitions, and watched."""
