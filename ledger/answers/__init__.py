"""What can be told of a request: rules, who is in the way, what would change it. Pure."""
