"""Dialects that the gateway speaks: a file for each, found by its name. A file has a `DIALECT`
(`inner_call.Dialect`), so a further dialect is one new file.

    parameters.py      what dialects share when they read a request
    every_dialect.py   all of them, by path
"""
