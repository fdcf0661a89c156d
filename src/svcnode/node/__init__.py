"""What a node is made of.

definition.py  the options of a service -> its definition
service_table.py  the services and their states, thread-safe
expiry.py      when their states expire
maintenance.py  who is in maintenance, and until when
feed.py        delivers every change to every listener, in order
scheduler/     checks the services that have a probe
workers.py     the worker processes of one program: shared states, and the election of the one that checks
stats.py       recent check results and counters, in memory
node.py        Node: all of it, as programs use it
"""

from svcnode.node.node import Node

__all__ = ["Node"]
