"""What changes a cluster: each action is planned, shown as a command, confirmed, carried out and logged (`steps`)."""
