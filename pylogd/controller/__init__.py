"""Who leads what: the decisions, and the broker that carries them out.

Reading guide: `decisions` has every rule as a pure function over a `Snapshot`; `controller` is the one broker of a
cluster that follows what happens and writes what they say; `admin` is what any broker does when a client asks for
an election or a reassignment.
"""
