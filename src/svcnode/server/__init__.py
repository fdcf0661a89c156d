"""The agent's HTTP/1.1 server, on uvloop and httptools.

server.py          listeners, shutdown
connection.py      one connection: its phases, and the path of a request from the received bytes to the response
parser.py          the bytes of a connection -> requests, within the limits
response_cache.py  request -> handler -> response -> encoded response, cached by the raw bytes of the request
streams.py         event streams
state.py           what all connections share: limits, time limits, turns, eviction
timeouts.py        the connections with the same time limit
sockets.py         binds addresses, loads certificates

The first GET of a path:
  receive  `Connection.data_received` finds no response to these bytes in the cache
  parse    `RequestParser.next_request`
  route    `ResponseCache.resolve`, which calls `api.routing.route`, unless the path belongs to the mounted application
  handle   `ResponseCache.current_response` calls the handler with the node
  encode   `ResponseCache.encoded_response`
  send     `Connection._respond`
  cache    `ResponseCache.put`
The same bytes again, from any connection: `data_received` gets the encoded response and writes it.
"""
