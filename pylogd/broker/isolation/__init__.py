"""Keep a busy disk from slowing down requests that do not use it: disk use, slow writes, lagging readers."""
