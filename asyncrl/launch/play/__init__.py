"""`asyncrl play`: one episode, or one response, in the foreground."""
