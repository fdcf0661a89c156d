"""Connects all other packages: as the process of `svcnode serve`, and inside another program.

agent.py        Agent: starts everything, applies a new configuration, stops
control.py      the control socket; its application is in control/
fleet/          the nodes of a fleet as services of the node
listeners.py    binds the addresses and mounts the operator surface
configured_services.py  applies the services of the file to the node and logs changes
sharing.py      the node as a replica of a node on several machines
signals.py      stop and reload signals
systemd.py      notifications to systemd, and the sockets that it passes
files.py        the files of history and store
store.py        the node's own SQLite file
logs.py         log output: text or JSON
watchdog.py     ends a process that hangs or is out of memory; feeds the watchdog of systemd
embed/          a node inside another program: Node, asgi, wsgi
"""
