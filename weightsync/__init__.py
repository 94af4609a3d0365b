"""Weights from the trainer into engines: the transaction of a publication, and every transport."""

if __name__ != "asyncrl.weightsync":  # else there would be two copies of each module
    raise ImportError("weightsync/ is the package asyncrl.weightsync: import it by that name")
