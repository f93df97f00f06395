"""Seed faults and see that the tests find them."""
