"""The console: pages for browsers on clusters, their topics, groups and brokers, in its own process.

Where to look: `sampler` asks a cluster in the background, in limited pieces (`cluster_requests`), and keeps the last
`sample`, which `pages/` shows. `web` has routes, logins and headers; `actions/` has all changes. Only the Kafka
protocol is used, so a cluster may be of pylogd or of Apache Kafka.
"""
