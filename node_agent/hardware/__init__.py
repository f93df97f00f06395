"""Facts of this machine. Each is a command or a file read, and a pure parse of its text."""
