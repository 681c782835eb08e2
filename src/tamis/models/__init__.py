"""Models: finding them on this machine, loading them, running them fast."""
