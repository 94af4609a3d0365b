"""A real run whose disk is lost, and which goes on from its copy."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from train_support import command, end, followed, processes, started, train, wait_for

from asyncrl.journal import fold
from asyncrl.observe.run_dir import JOURNAL
from asyncrl.training.checkpoint_index import latest
