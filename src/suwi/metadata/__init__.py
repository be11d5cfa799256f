"""The cluster's state and the store that keeps it.

`store` is the port every other part programs against; `embedded`, `zookeeper` and `memory` keep
its contract. Import the implementations by module, so that none costs what it is not used for.
"""
