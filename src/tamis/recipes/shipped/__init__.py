"""The recipes that come with Tamis, one YAML file each, with their sources."""
