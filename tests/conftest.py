"""Fixtures of all tests; those for a real Kafka are in tests/kafka_fixtures.py."""

pytest_plugins = ["tests.hypothesis_profiles", "tests.kafka_fixtures"]
