"""Files on disks and at URLs: storage and remote ones, finding and checking them, and where results may be written."""
