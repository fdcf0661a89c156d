"""Which known services run on this host, and the configuration that looks at them.

known.py     the table: each service, its usual ports, how it is known, and how it is written down
speech.py    how a service is known by what it says; no driver is needed for that
search.py    asks all of them at once
choice.py    for each that was found, the deepest probe that works here as it is
document.py  the file
"""
