"""Real servers for tests, one file each, on free ports and in their own folders, with methods that cause faults."""
