"""A local page to look at a run: what a recipe keeps and drops, pairs near its threshold, where recipes disagree.

`pages` has the questions that `web/` asks, `queries` answers them, `server` speaks HTTP.
"""
