"""Output for terminals: requests to nodes, and how their state is shown."""
