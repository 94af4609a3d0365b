"""Known vulnerabilities of every locked package: `make audit`.

pip-audit asks the package index for the advisories of each version. Where it has none to give, or
cannot be reached, that is said and is no error; a known vulnerability is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_S = 300.0
"""Seconds for the advisories of one lock."""


def main() -> None:
    reports = {lock.name: audited(lock) for lock in sorted(HERE.glob("*.lock"))}
    text, status = verdict(reports)
    print(text)
    sys.exit(status)


def audited(lock: Path) -> dict[str, Any] | None:
    """The report of pip-audit; None where it had no advisories."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--requirement", str(lock)]
    command += ["--require-hashes", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return dict(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def verdict(reports: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, int]:
    """A line for each vulnerability and one about all, and the exit status: 1 where there is a
    vulnerability."""
    answers = {lock: report["dependencies"] for lock, report in reports.items() if report}
    flaws = [
        f"{lock}: {package['name']} {package['version']}: {flaw['id']}, "
        f"fixed in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for lock, packages in answers.items()
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    known = sum("vulns" in package for packages in answers.values() for package in packages)
    unknown = sum(map(len, answers.values())) - known
    silent = [lock for lock in reports if lock not in answers]
    if not known:
        return "audit: SKIPPED, this index has no advisories: nothing was looked up", 0
    lines = [*flaws, f"audit: {known} locked packages looked up, {len(flaws)} vulnerabilities"]
    if unknown:
        lines.append(f"audit: SKIPPED {unknown} packages, which have no advisories here")
    if silent:
        lines.append(f"audit: SKIPPED {', '.join(silent)}, which got no answer")
    return "\n".join(lines), int(bool(flaws))


if __name__ == "__main__":
    main()
