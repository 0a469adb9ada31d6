"""What starts the surroundings of gpuledger: a local Kafka, containers."""
