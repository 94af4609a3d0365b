"""The site of this documentation: `make docs`, and then build/docs/docs/index.html.

Sphinx with MyST reads the pages as they are on GitHub. A page may link to any file of the project:
those that are no pages are copied.
"""

project = "asyncrl"
html_title = "asyncrl"
html_show_copyright = False  # there is none to show but the licence
html_theme = "furo"
html_show_sphinx = False
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/examples/**.md", "*.md", "bench/README.md"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
