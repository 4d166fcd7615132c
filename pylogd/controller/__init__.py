"""Leader elections and reassignments: the rules, and the broker that carries them out.

Reading guide: `decisions` has every rule as a pure function over a `Snapshot`. `election` chooses the broker of a
cluster that is its controller; `controller` follows what happens there and writes what the rules say. `admin` is what
any broker does when a client asks for an election or a reassignment.
"""
