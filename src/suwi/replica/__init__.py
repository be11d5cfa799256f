"""The replicas of partitions on this broker: roles, high watermark, ISR, replication."""
