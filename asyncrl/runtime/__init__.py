"""The life of a run's processes on a machine.

    ipc/           links between processes, their frames, keys and TLS; waits, each with a name
                   and a bound
    processes/     children that cannot outlive the run, the fork server, supervision, healing
    httpd/         a small HTTP/1.1 server
    run_dir.py     the names of the files in a run's directory
    logs.py, output.py, progress.py    logs, text and progress for people

`asyncrl.launch` starts them, here or on other machines; `asyncrl.messages` has the messages between
them.
"""
