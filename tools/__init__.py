"""Programs for developers of Tamis. They are not in the wheel."""
