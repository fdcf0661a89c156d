"""Real servers, one file each: every one runs on free ports in a folder of its own, and can be hurt in known ways."""
