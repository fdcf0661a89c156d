"""Checks any implementation of the interface as a black box, read-only, clause by clause.

It is a second reading of the interface document, and uses neither our server nor our client, so an error in one of them
cannot hide in the checker. `interface` holds the constants of the document, `target` the address of the node,
`http_client` the connection, `response` the content of responses, `node_under_test` the requests of the checks, `check`
and `checks` the requirements. `run` runs all checks; `report` and `pytest` present the results.
"""
