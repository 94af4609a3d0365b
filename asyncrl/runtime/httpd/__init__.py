"""A small HTTP/1.1 server on trio, for ports that strangers can reach: the agents' gateway and the
metrics. It speaks ASGI to the application behind it."""
