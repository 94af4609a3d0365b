"""Sandboxes that agents open and keep for an attempt: containers with an image of their own, and
sandboxes of a provider elsewhere.

    box.py            a sandbox as an agent sees it, and what a provider must have
    box_names.py      names of sandboxes, images and files: pure
    open_boxes.py     opens those of one attempt, and ends each
    image_store.py    images of this machine: pulled once, bounded, evicted; image_pull.py pulls
    container_box.py  containers of a client: docker, podman
    box_api.py        HTTP of a provider's API
    repository.py     a git repository without its history, and hidden tests
    providers/        one file for each kind

`asyncrl.sandbox.programs` runs one program in a fresh sandbox; here a sandbox lasts, and many
commands run in it.
"""
