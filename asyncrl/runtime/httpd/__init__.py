"""A small HTTP/1.1 server on trio, for doors that strangers may knock at: the agents' gateway and
the metrics. It speaks ASGI to the application behind it."""
