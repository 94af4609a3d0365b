"""Staleness: lag and what is done about it. The rule of admission, which bounds it; the loss mask;
proximal policies; corrections by importance weights; divergence by lag.

Pure, and without torch but for types: settings and the coordinator import this.
"""

if __name__ != "asyncrl.staleness":  # else there would be two copies of each module
    raise ImportError("staleness/ is the package asyncrl.staleness: import it by that name")
