"""Forms in which models write calls of tools: a file for each, found by its name. A file has a
`FORMAT`, so a new form is one new file.

    tool_format.py     a form, and the parser that most of them share
    values.py          arguments that a form writes without types
    thoughts.py        what a model thinks before it answers
    every_format.py    all of them, and what looks like a call in any
"""
