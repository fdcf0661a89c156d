"""Dates that another machine wrote, read by our clock."""

from __future__ import annotations

# Between two clocks that are set right. What is dated further ahead may be of any age: the clocks disagree.
CLOCK_SLACK_S = 60.0
