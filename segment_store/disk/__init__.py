"""The disk: io_uring, threads, or memory, behind one interface; syncs shared out fairly."""
