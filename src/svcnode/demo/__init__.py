"""`svcnode demo`: a node with five small real servers that break and mend by a script.

script.py   what happens, and when
servers.py  the five servers: real listeners, real protocols, and moods
cast.py     how the node looks at each of them
show.py     puts them on: the servers, the script, and the agent as it always is
"""
