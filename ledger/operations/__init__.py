"""Reports for those who run a site: operations, capacity, the week, an acceptance pack. Pure."""
