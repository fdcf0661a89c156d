"""Why a node or a service is what it is, in plain words, from what the node tells at `/details`. Pure.

services.py     one service
nodes.py        the node as a whole
facts.py        what was told of a service, as values
runs.py         its last attempts: equal ones in a row are one sentence
story.py        which rule makes it what it is, and what would change it
hints.py        what to mend, by the table in remedies.py
spoken.py       times and durations as people say them
explanation.py  what comes of it
"""
