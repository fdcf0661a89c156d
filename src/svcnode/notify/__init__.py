"""Tells people: one message for each change of the node, or of a critical service.

rules.py      what is worth a message, and when: changes in, news out
thing.py      the node, or one service: what is so, what was told, what is to be told of it, and when
flapping.py   what changes too often
incidents.py  what was told and is not over, also over a restart
news.py       what one message says
digest.py     the same in words for people, and in fields for programs
targets.py    who is told: webhooks, and whatever Apprise knows
sending.py    outboxes: bounded, patient, one for each target
memory.py     what is not over, and what was lost, as a text that outlives the process
notifier.py   follows a node, and brings the others together
notices.py    what became of the messages, in numbers
settings.py   what the configuration says

The first six wait for nothing and send nothing: time is passed in.
"""
