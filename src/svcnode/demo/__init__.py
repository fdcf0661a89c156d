"""`svcnode demo`: a node with five small real servers that fail and recover in a fixed scenario.

scenario.py  the steps and their times
servers.py   the five servers: real listeners, real protocols, and fault modes
services.py  how the node checks each of them
runner.py    runs the servers, the scenario and the agent
"""
