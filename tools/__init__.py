"""Programs for whoever works on Tamis: they are not in the wheel."""
