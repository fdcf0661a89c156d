"""Watch nodes on a terminal.

model.py   the nodes, their changes and their recent past
view.py    order, filter, selection and keys: which rows are shown
render.py  the rows as lines of text
keys.py    bytes from the terminal as keys
screen.py  the terminal
app.py     polls the nodes, reads keys, draws; the only module that knows all others

All but screen.py and app.py are pure: no clock, no terminal.
"""
