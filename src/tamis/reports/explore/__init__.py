"""A local page to look at a run: what a recipe keeps and drops, pairs near its threshold, where recipes disagree.

`web/` sends requests, `server` receives them, `pages` checks and dispatches them, `queries` answers them.
"""
