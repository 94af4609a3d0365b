"""An SGLang server that asks for the key of a file: `keyed_server.py FILE OPTIONS…`.

SGLang 0.5.23 takes its key as an option alone, and then writes all of its options into its log and
returns them at `/server_info` (its issue 37457). Here it never learns the key: the check that it
would make stands in front of it. Health, readiness and metrics need no key, as with its own.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Serve until ended. Raises SystemExit where the file has no key, or an option has one."""
    if len(sys.argv) < 2 or any(word.startswith(("--api-key", "--admin-api")) for word in sys.argv):
        sys.exit("keyed_server: name the file of the key first, and give no key as an option")
    file, *options = sys.argv[1:]
    try:
        key = Path(file).read_text().strip()
    except OSError as error:
        sys.exit(f"keyed_server: the key cannot be read: {error}")
    if not key:
        sys.exit(f"keyed_server: {file} is empty: put the servers' key into it")

    from sglang.launch_server import run_server
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree
    from sglang.srt.utils.auth import add_api_key_middleware

    load_plugins()
    # What the server asks of itself has no key. So asyncrl's canary is its first request, and its
    # garbage collector is not frozen, which its log says once.
    arguments = prepare_server_args([*options, "--skip-server-warmup"])
    add_api_key_middleware(app, api_key=key, admin_api_key=None)
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":  # its schedulers import this file again
    main()
