"""`yard prices`: shows the list prices in the catalog, and updates them from the clouds' public price lists.

web.py requests JSON, azure.py and gcp.py parse the lists, and book.py updates the file. To add a cloud, add a module
with `BASE`, `SOURCE`, `REGION` and `quotes`, and register it in `VENDORS` in command.py.
"""
