"""The agent's HTTP/1.1 server, on uvloop and httptools.

The first GET of a path:
  1. `Connection.data_received` finds no entry for the request's raw bytes in the `ResponseCache`.
  2. `RequestParser.feed` parses the bytes and checks the limits. `ResponseCache.resolve` returns the handler of the
     path, from `api.routing.route`, unless the path belongs to the mounted application.
  3. `Connection._cache_request` stores the raw bytes with the handler.
  4. `Connection._send_pending` writes `ResponseCache.encoded_response`, which calls the handler with the node.
The same bytes again, from any connection: step 1 finds the encoded response and writes it.
"""
