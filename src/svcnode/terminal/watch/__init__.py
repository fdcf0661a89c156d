"""Nodes live on a terminal: what was seen of them, which part of it is shown, how that looks, and the terminal itself.

Only live.py knows all of them. What decides (seen.py, view.py, keys.py, drawing.py) has neither clock nor terminal.
"""
