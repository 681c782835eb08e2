"""Speed and memory, as ratios against what a user would run instead. `python -m benchmarks.NAME [--quick] [--json]`."""
