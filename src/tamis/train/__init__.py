"""Training: one loop, into which model, loss and data are passed."""

from tamis.train.loop import Settings, fit

__all__ = ["Settings", "fit"]
