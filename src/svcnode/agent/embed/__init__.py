"""A node inside another program.

node.py          Node: what a program embeds
asgi.py, wsgi.py  the node as an application of a Python server
options.py       the options of the operator endpoints, and what both kinds of application share
embedding.py     history, messages and operator surface of a node, which run with its checks
collector.py     its metrics for a Prometheus registry of the program
operator_app.py  the operator endpoints, for the server of the program
stream.py        an event stream from one event loop to another, or to a thread
"""
