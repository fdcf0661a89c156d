"""What the kinds share: options, secrets, connections, TLS, one HTTP exchange, threads."""
