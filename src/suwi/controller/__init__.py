"""The controller: decides on topics, partitions, leaders, in-sync replicas and configuration."""
