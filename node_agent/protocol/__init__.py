"""What the coordinator and a node must agree on: ids, cards, wire messages, signatures.

Pure: no I/O, no clock, no randomness of its own. Depends on pydantic and cryptography only.
"""
