"""Control groups and disks of an experiment's own, for what limits memory or disks. All of it needs root."""
