"""The truth campaign: real servers, hurt in every known way, and whether the node says what is so.

`python -m tests.truth` runs it; `make truth` sets up what it needs first.
"""
