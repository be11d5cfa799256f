"""What stalls an event loop, seen from inside: launchers that record every callback of a broker.

Only benchmarks use them; a broker that people run knows nothing of this. `broker` starts
`suwi serve`, `cluster` several brokers of the test kit, `idle` a loop that has nothing to do.
"""
