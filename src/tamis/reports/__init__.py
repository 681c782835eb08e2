"""The report: one page of HTML that says what a pool is like, what each recipe keeps of it, and what it drops.

`page.py` puts it together from a module in `sections/` and a template per section; `context.py` has what they share.
"""
