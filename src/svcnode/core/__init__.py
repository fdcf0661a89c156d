"""The domain model and its rules: immutable values and pure functions. Standard library only; no I/O, no clock."""
