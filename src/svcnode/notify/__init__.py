"""Tells people: one message for each change of the node, or of a critical service.

rules.py      what is worth a message, and when; pure
digest.py     the message, in words and in fields; pure
targets.py    who is told: webhooks, and whatever Apprise knows
sending.py    outboxes: bounded, patient, one for each target
memory.py     what was told and is not over, and what was lost, as a text that outlives the process
notifier.py   follows a node, and brings the others together
notices.py    what became of the messages, in numbers
"""
