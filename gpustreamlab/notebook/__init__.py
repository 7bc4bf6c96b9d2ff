"""What notebooks see: cells, live timelines and the partitioner."""
