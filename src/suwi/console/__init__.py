"""The web console: a client of the clusters it was started for, which a browser reads as pages.

`server` builds and runs it, `access` decides who may ask, `page` turns the function of a page into
its address; `change` does the same for changes; every other module is one page, or the
changes of one area.
"""
