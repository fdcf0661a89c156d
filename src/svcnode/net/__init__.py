"""Client-side I/O that probes, webhooks and discovery build on: connections, DNS, TLS, HTTP/1.1, threads."""
