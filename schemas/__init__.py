"""What crosses a topic: models, catalogue, topics, CloudEvents, JSON Schema."""
