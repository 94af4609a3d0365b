"""second_try.py: an environment. A wrong answer is told which of its letters are right, once."""

from asyncrl.agents import Step


class SecondTry:
    def reset(self, entry, seed):
        self.wanted, self.tries = entry["answer"], 0
        return entry["prompt"]

    def step(self, reply):
        self.tries += 1
        given = reply.strip()
        if given == self.wanted:
            return Step("right", 1.0, done=True)
        pairs = zip(self.wanted, given.ljust(len(self.wanted)), strict=False)
        marks = "".join("+" if a == b else "-" for a, b in pairs)
        return Step(f"{marks} sort again:", 0.0, done=self.tries == 2)
