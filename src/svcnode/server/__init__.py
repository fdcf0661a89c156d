"""What shows the node to the world; every surface answers through `site` and `spec`."""
