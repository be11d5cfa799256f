"""The one elected broker that decides: topics, their partitions and who leads them."""
