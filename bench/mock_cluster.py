"""librdkafka's mock cluster as a server of its own: in memory, in C, a few MB per partition.

Prints its address and runs until standard input ends.
"""

import sys

from confluent_kafka import Producer


def main() -> None:
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
