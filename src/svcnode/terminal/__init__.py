"""What the commands share that show nodes to people: how nodes are asked, and how they look on a terminal."""
