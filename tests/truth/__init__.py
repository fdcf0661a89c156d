"""The truth campaign: inject faults into real servers and compare the statuses that a node reports.

`python -m tests.truth` runs it; `make truth` sets up what it needs first.
"""
