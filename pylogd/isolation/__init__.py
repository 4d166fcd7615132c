"""Keep busy disks from slowing down what does not need them: disk use, slow writers, readers that lag."""
