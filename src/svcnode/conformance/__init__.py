"""Judges any implementation of the interface, black box and read-only, clause by clause.

A second reading of the interface document: it uses neither our server nor our client, so that none of them can be
right only because another one makes the same mistake. `interface` is what the document fixes, `target` where the node
is, `exchange` the wire, `reading` what an answer holds, `wording` how that is shown, `subject` what the checks ask,
`check` what a check is, `checks` what is demanded; `run` asks for all of it, `report` and `pytest` tell what came of
it.
"""
