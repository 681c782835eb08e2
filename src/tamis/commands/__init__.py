"""The commands, a file each: what they do, in which order. `tamis.NAME` is the function of the file NAME."""
