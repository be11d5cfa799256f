"""A fuzzer of frames and batches: hostile peers against a real broker process.

`python -m fuzz --seconds 120 --seed 7` runs it. `cases` makes what is sent, a pure function of seed
and number; `attack` sends it over several connections; `checker` is an honest client whose records
must stay right meanwhile; `broker` watches the process: alive, answering, small, no traceback.
Any finding prints the seed, the cases under way and the command that replays them.
"""
