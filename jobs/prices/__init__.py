"""`yard prices`: the catalog's price list, and its renewal from what the vendors publish.

web.py fetches; azure.py and gcp.py each know one vendor's answers; book.py is pure and writes the file's text. A new
vendor: a module with `SOURCE`, `REGION` and `quotes(wanted, fetch)`, and its line in command.py.
"""
