"""Data sets as they are: files of any ordinary format, and rows of any known form.

    path ─▶ data_files ─▶ data_rows ─▶ row_forms ─▶ row_reader ─▶ data_task
            which files   rows, read    which keys   prompt and    splits, verdicts
                          when asked                 answer

Rows are read when they are asked for. A file that is no JSON lines is turned into such lines, or
into Arrow's records, once: a small one in memory, a large one in the user's cache.
"""
