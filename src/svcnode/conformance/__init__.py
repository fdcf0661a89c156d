"""Judges any implementation of the interface, black box and read-only, clause by clause.

A second reading of the interface document: it uses neither our server nor our client, so that none of them can be
right only because another one makes the same mistake. `interface` is what the document fixes, `target` where the node
is, `exchange` the wire, `reading` what an answer holds, `subject` what the checks ask, `checks` what is demanded; `run`
asks for all of it, `report` tells what came of it.
"""
