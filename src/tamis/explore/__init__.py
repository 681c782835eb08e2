"""A local page to look at a run: what a recipe keeps and drops, pairs near its threshold, where recipes disagree.

`columns` holds scores in memory, `queries` answers the page, `images` reads images, `labels` keeps what a person said
about pairs, `server` speaks HTTP. `web/` is the page itself.
"""
