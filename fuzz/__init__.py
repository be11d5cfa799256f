"""A fuzzer of frames and batches: hostile peers against a real broker process.

`python -m fuzz --seconds 120 --seed 7` runs it. `cases` creates what is sent, a pure function of
seed and number; `attack` sends it over several connections; `checker` is an honest client whose
records must stay correct meanwhile; `run` monitors the process: running, answering, memory, no
traceback. `simulated` sends the same to a simulated broker, where even the order of events is
repeatable. Every finding prints the seed, the current cases and the command that replays them.
"""
