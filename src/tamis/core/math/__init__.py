"""Formulas, in NumPy (two also use SciPy or OpenCV): each can be called alone in a notebook."""
