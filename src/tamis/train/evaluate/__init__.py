"""Evaluates models, subsets and scores."""
