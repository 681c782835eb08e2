"""Formulas, in pure NumPy: each can be called alone in a notebook."""
