"""A local page on which one looks at a run: what a recipe keeps and drops, what lies at its cut, where two disagree.

`columns` holds scores in memory, `queries` answers what the page asks, `images` reads pictures, `labels` keeps what a
person said of pairs, `share` writes a view as one file, `server` speaks HTTP. `web/` is the page itself.
"""
