"""Actions that change a cluster: each is planned, shown as a command, confirmed, carried out and logged (`steps`)."""
