"""A fuzzer of frames and batches: hostile peers against a real broker process.

`python -m fuzz --seconds 120 --seed 7` runs it. `cases` makes what is sent, a pure function of seed
and number; `attack` sends it over several connections; `checker` is an honest client whose records
must stay right meanwhile; `run` watches the process: alive, answering, small, no traceback.
`simulated` sends the same to a broker in simulation, where even the order of events is repeatable.
Any finding prints the seed, the cases under way and the command that replays them.
"""
