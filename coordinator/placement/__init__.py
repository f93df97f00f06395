"""Placement: which host gets which job, and why not the others. Pure: no I/O, no clock."""
