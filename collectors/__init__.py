"""What runs on or for the nodes: the node agent, and nodes that are simulated."""
