"""Fixtures of all tests; those for a real Kafka are in tests/kafka_fixtures.py."""

pytest_plugins = ["tests.kafka_fixtures"]
