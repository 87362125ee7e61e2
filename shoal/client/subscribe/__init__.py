"""Messages of a consumer group: received, held while they are worked on, and acknowledged."""
