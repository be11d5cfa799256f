"""What stalls an event loop, measured inside: launchers that record every callback of a broker.

Only benchmarks use them. `broker` starts `suwi serve`, `cluster` several brokers of the test kit,
`idle` a loop that has nothing to do.
"""
