"""Record batches, format 2: reading, validating, building, compressing.

`batch` handles the header and never reads the records; `record` decodes them; `validate` validates
a client's batch; `builder` builds new batches and changes the codec of existing ones.
Modules are imported by name; nothing is re-exported here.
"""
