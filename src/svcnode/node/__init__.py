"""What a node is made of.

node_state.py      NodeState: identity, services, states and health, thread-safe; where all evidence is recorded
service_states.py  the services and their states, without a lock
expiry.py          a service with its state, and when the states expire
overrides.py       issues, draining, starting: what lowers the health whatever the services do
maintenance.py     who is in maintenance, and until when
acknowledgements.py  which problems somebody takes care of
scheduled_maintenance.py  begins and ends it by the wall clock
definition.py      the options of a service -> its definition
feed.py            delivers every change to every listener, in order
checks.py          Checks: whether and where the checks run
scheduler/         checks the services that have a probe
workers.py         the worker processes of one program: shared states, and the election of the one that checks
stats.py           recent check results and counters, in memory
"""
