"""Explain the status of a node or a service, from `/details`. Pure functions.

explanation.py  the explanation of a node and of a service, as lines of text
details.py      the JSON of /details/{id} as values
rule_text.py    which rule sets the status, and what changes it
hints.py        how to fix it; the advice by reason code is in core/remedies.py
durations.py    times and durations as text
"""
