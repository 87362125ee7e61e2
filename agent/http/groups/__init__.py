"""Consumer groups as requests: receives, words about messages, and what operators do."""
