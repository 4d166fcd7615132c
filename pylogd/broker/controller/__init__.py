"""Leader elections and reassignments: the rules, and the broker that carries them out.

Reading guide: `decisions` has every rule as a pure function over a `Snapshot`. `election` chooses the broker that is
the cluster's controller; `controller` follows changes of brokers and topics, and writes what the rules decide. `admin`
carries out elections and reassignments that clients ask for; any broker does this.
"""
