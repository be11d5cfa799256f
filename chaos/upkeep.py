"""Another process that works on the table: compaction and vacuum, again and again, until killed.

`python -m chaos.upkeep TABLE`; it prints how often each was done, as JSON. An unexpected error
ends it, and the run notices.
"""

import json
import sys
import time

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

_PAUSE_S = 2.0
_FILES_MIN = 8


def main(path: str) -> None:
    done = {"compactions": 0, "vacuums": 0, "refused": 0}
    while True:
        time.sleep(_PAUSE_S)
        try:
            if len(DeltaTable(path).file_uris()) < _FILES_MIN:
                continue
            DeltaTable(path).optimize.compact(max_concurrent_tasks=1)
            done["compactions"] += 1
            # No retention: files that a version no longer has are removed at once.
            table = DeltaTable(path)
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            done["vacuums"] += 1
        except TableNotFoundError:
            continue
        except (DeltaError, OSError):
            done["refused"] += 1  # A batch was faster.
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
