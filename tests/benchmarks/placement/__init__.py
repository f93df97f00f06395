"""How fast placement decides, and how well: against other policies and a bound, on seeded worlds."""
