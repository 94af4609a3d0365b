"""squares.py: numbers to be squared."""

import asyncrl


class Squares(asyncrl.Task):
    """Squares of the numbers below `most`."""

    def __init__(self, most=100):
        self.most = most

    def rows(self):
        return range(self.most)

    def prompt(self, row):
        return f"{row} * {row} ="

    def answer(self, row):
        return str(row * row)
