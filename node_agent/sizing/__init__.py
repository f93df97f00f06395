"""What a Mac can hold and how fast it runs it. Pure: the same answer on both sides of the wire."""
