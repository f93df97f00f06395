"""Measurements, started by hand or by `make bench-serving`; not part of the test suite."""
