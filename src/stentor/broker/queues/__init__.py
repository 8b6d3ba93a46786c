"""Work queues, at the brokers that lead their partitions."""
