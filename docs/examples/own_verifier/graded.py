"""graded.py: a verifier that gives two rewards, which are compared each by itself."""


def graded(answer: str, line: dict) -> dict[str, float]:
    wanted, given = line["answer"], answer.strip()
    right = sum(a == b for a, b in zip(wanted, given, strict=False))
    return {"letters": right / len(wanted), "length": float(len(given) == len(wanted))}


graded.rewards = ("letters", "length")
