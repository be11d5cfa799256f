"""The cluster metadata: the metadata store and the image that brokers build from it.

`store` is the interface; `embedded`, `zookeeper` and `memory` implement it. Import them by module,
so that an unused implementation costs no start-up time.
"""
