"""Record batches, format 2: read, check, build, compress.

`batch` knows the header and never looks at the records; `record` decodes them; `validate` judges
what a client sent; `builder` makes new batches; `convert` changes the codec of existing ones.
Modules are imported by name; nothing is re-exported here.
"""
