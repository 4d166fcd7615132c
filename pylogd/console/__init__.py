"""The console: pages for browsers on clusters, their topics, groups and brokers, in its own process.

Where to look: `sampler` asks a cluster in the background, in bounded pieces (`asking`), and keeps the last `sample`;
`pages/` shows it. `web` has routes, logins and headers; `actions/` has what changes something. Only the Kafka protocol
is used, so a cluster may be of pylogd or of Apache Kafka.
"""
