"""What the group and the transaction coordinator share: shards of state on internal partitions."""
