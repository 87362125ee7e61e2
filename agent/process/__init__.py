"""What the operating system gives a process: clock, ports, signals, memory, event loop, children."""
