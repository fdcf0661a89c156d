"""The interface over HTTP: the endpoints as data, and the applications that serve them."""
