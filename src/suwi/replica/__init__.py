"""The replicas of partitions on this broker: leader and follower roles, high watermark,
fetching."""
