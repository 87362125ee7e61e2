"""Services of the operating system: clock, ports, signals, memory, event loop, children."""
