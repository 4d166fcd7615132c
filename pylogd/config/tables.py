"""The tables of settings: of brokers, topics, groups and subscriptions to clients' metrics; and the profiles.

Generated from pylogd/config/*.toml by tools/generate_settings.py: edit those instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.config.values import Choice, ConfigType, Mode, Profile, Setting

# fmt: off


def _by_name(*settings: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({setting.name: setting for setting in settings})


#: Every broker setting by name, in the order of the manual.
SETTINGS: Final[Mapping[str, Setting]] = _by_name(
    Setting(
        "node.id", ConfigType.INT, 1,
        "The broker's number, unique in its cluster. It is written into every data directory, and a directory of "
        "another node is refused. (Kafka has no default.)",
        "Identity and addresses", minimum=0,
    ),
    Setting(
        "listeners", ConfigType.LIST, ("PLAINTEXT://127.0.0.1:9092",),
        "Where the broker listens: `NAME://host:port`, `host:port`, or a Twisted endpoint string such as "
        "`tcp:9092:interface=127.0.0.1`. An empty host means every IPv4 interface; port 0 picks a free one. Names must "
        "differ; `listener.security.protocol.map` says how each is protected. For clients on other machines, set an "
        "address that they can reach, and use TLS. Listeners can be added, removed and moved to other ports at run "
        "time, but that between brokers can't be removed. (Kafka's default is every interface.)",
        "Identity and addresses", mode=Mode.DYNAMIC, per_broker=True,
    ),
    Setting(
        "listener.security.protocol.map", ConfigType.LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "How the connections of a listener are protected, by its name: `NAME:PROTOCOL` with PLAINTEXT, SSL, "
        "SASL_PLAINTEXT or SASL_SSL. A value replaces the default map, so list all names in use.",
        "Identity and addresses", mode=Mode.DYNAMIC, per_broker=True,
    ),
    Setting(
        "inter.broker.listener.name", ConfigType.STRING, None,
        "The name of the listener that brokers use for connections to each other. Unset: the listener named by "
        "`security.inter.broker.protocol`, or else the first listener.",
        "Identity and addresses", nullable=True,
    ),
    Setting(
        "security.inter.broker.protocol", ConfigType.STRING, None,
        "The name of the listener between brokers, if the listener is named like its protocol. Can't be used with "
        "`inter.broker.listener.name`. (Kafka's default is PLAINTEXT.)",
        "Identity and addresses", choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), nullable=True,
    ),
    Setting(
        "advertised.listeners", ConfigType.LIST, None,
        "The addresses that clients connect to, by listener name, if they differ from the addresses in `listeners` "
        "(behind NAT, in a container). Unset: the addresses in `listeners`; a listener on all interfaces is then "
        "advertised with the machine's host name.",
        "Identity and addresses", nullable=True,
    ),
    Setting(
        "broker.rack", ConfigType.STRING, None,
        "The rack, or availability zone, of the broker. Replicas of a partition are spread over racks.",
        "Identity and addresses", nullable=True,
    ),
    Setting(
        "host.id", ConfigType.STRING, None,
        "The machine that the broker runs on, if other brokers run there too. Two replicas of a partition are on the "
        "same machine only if there are more replicas than machines; machines take precedence over racks. Unset: the "
        "broker counts as the only one on its machine; with `pylogd broker --workers`, the machine's host name. (Only "
        "in pylogd.)",
        "Identity and addresses", nullable=True,
    ),
    Setting(
        "broker.labels", ConfigType.LIST, (),
        "The labels that the broker carries, such as `online,ssd`. A topic whose `placement.label` is one of these "
        "labels has its replicas only on brokers that carry this label. If a broker loses a label, its replicas stay "
        "where they are, and `pylogd cluster describe` lists them as misplaced. (Only in pylogd; see docs/labels.md.)",
        "Identity and addresses", mode=Mode.DYNAMIC,
    ),
    Setting(
        "broker.profile", ConfigType.STRING, None,
        "A ready set of settings for a kind of cluster: `logs`, `online` or `offline`. It replaces defaults, and is "
        "overridden by all values that are set otherwise. `pylogd settings --profile NAME` lists them. (Only in "
        "pylogd; see docs/profiles.md.)",
        "Identity and addresses", choices=("logs", "online", "offline"), nullable=True,
    ),
    Setting(
        "metadata.store", ConfigType.STRING, None,
        "Where topics, their settings and broker registrations are stored: `sqlite:/path/to/file` for the embedded "
        "store, or `unix:/path/to/socket` if another process on this machine serves it (`pylogd broker --workers`). "
        "Unset: the file `store.sqlite` in the first of `log.dirs`. Can't be used with `zookeeper.connect`, which "
        "stores them in ZooKeeper. (Only in pylogd.)",
        "Metadata", nullable=True,
    ),
    Setting(
        "zookeeper.connect", ConfigType.STRING, "",
        "The ZooKeeper servers that store the cluster's metadata, and the path below which they store it: "
        "`host:port,host:port/chroot`. The chroot is created if it is missing; the default port is 2181. Empty: a "
        "single broker with the embedded store, see `metadata.store`. (Kafka 3's; Kafka 4 has no ZooKeeper.)",
        "ZooKeeper",
    ),
    Setting(
        "zookeeper.session.timeout.ms", ConfigType.INT, 4000,
        "How long the broker may be silent before ZooKeeper ends its session and other brokers take over. The servers "
        "limit the value, by default to between 2 and 20 of their ticks, and check once per tick. (Kafka's default is "
        "18000. A longer timeout tolerates longer pauses of a broker, but a dead broker is replaced that much later.)",
        "ZooKeeper", minimum=100,
    ),
    Setting(
        "zookeeper.connection.timeout.ms", ConfigType.INT, None,
        "How long a starting broker waits for ZooKeeper before the start fails. Unset: the session timeout.",
        "ZooKeeper", minimum=1, nullable=True,
    ),
    Setting(
        "zookeeper.set.acl", ConfigType.BOOLEAN, False,
        "Whether to protect the nodes that brokers create: only the brokers' credentials may change them, and read "
        "those with settings, SCRAM credentials, delegation tokens and ACLs. Needs `zookeeper.auth.digest`, SASL or a "
        "certificate, with the same credentials for all brokers. To protect existing nodes, run `pylogd zookeeper "
        "--protect`.",
        "ZooKeeper",
    ),
    Setting(
        "zookeeper.auth.digest", ConfigType.PASSWORD, None,
        "`user:password` for ZooKeeper's digest scheme. ZooKeeper checks it only against the ACLs of nodes: wrong "
        "credentials are not refused, but can't change protected nodes. (Only in pylogd.)",
        "ZooKeeper", nullable=True,
    ),
    Setting(
        "zookeeper.sasl.mechanism", ConfigType.STRING, None,
        "Authenticate with SASL. Needs the package `pure-sasl` (`pip install 'pylogd-broker[sasl]'`). (Only in pylogd; "
        "Kafka has a JAAS file.)",
        "ZooKeeper", choices=("DIGEST-MD5", "GSSAPI"), nullable=True,
    ),
    Setting(
        "zookeeper.sasl.username", ConfigType.STRING, None,
        "The user for SASL DIGEST-MD5, the principal for GSSAPI. (Only in pylogd.)", "ZooKeeper", nullable=True,
    ),
    Setting(
        "zookeeper.sasl.password", ConfigType.PASSWORD, None, "The password for SASL DIGEST-MD5. (Only in pylogd.)",
        "ZooKeeper", nullable=True,
    ),
    Setting(
        "zookeeper.ssl.client.enable", ConfigType.BOOLEAN, False, "Whether to connect to ZooKeeper with TLS.",
        "ZooKeeper",
    ),
    Setting(
        "zookeeper.ssl.truststore.location", ConfigType.STRING, None,
        "A PEM file with certificates to trust for ZooKeeper's servers, in addition to the system's.", "ZooKeeper",
        nullable=True,
    ),
    Setting(
        "zookeeper.ssl.keystore.location", ConfigType.STRING, None,
        "A PEM file with the broker's certificate and private key, for servers that require one.", "ZooKeeper",
        nullable=True,
    ),
    Setting(
        "zookeeper.ssl.keystore.password", ConfigType.PASSWORD, None, "The password of the private key.", "ZooKeeper",
        nullable=True,
    ),
    Setting(
        "zookeeper.ssl.endpoint.identification.algorithm", ConfigType.STRING, "HTTPS",
        "Whether the server's certificate must name the host that the broker connects to: HTTPS for yes, empty for no.",
        "ZooKeeper", choices=("HTTPS", ""),
    ),
    Setting(
        "auto.create.topics.enable", ConfigType.BOOLEAN, True,
        "Whether to create a missing topic when a client requests its metadata and allows its creation.", "Topics",
    ),
    Setting(
        "delete.topic.enable", ConfigType.BOOLEAN, True, "Whether topics may be deleted by request.", "Topics",
    ),
    Setting(
        "num.partitions", ConfigType.INT, 1, "Number of partitions of a topic that is created without this number.",
        "Topics", minimum=1,
    ),
    Setting(
        "default.replication.factor", ConfigType.INT, 1,
        "Number of replicas of each partition of a topic that is created without a replication factor. A single broker "
        "can hold one replica.",
        "Topics", minimum=1, maximum=32767,
    ),
    Setting(
        "max.partitions.per.request", ConfigType.INT, 10000,
        "Most partitions that one CreateTopics or CreatePartitions request may add. (Only in pylogd; Kafka has the "
        "same limit as a constant.)",
        "Topics", minimum=1,
    ),
    Setting(
        "default.placement.label", ConfigType.STRING, "",
        "The label of topics that are created without a `placement.label`: by clients, automatically, or by brokers "
        "for their own state. It becomes a setting of the topic, so later changes of the default do not affect the "
        "topic. Empty: any broker. Set it to the same value on all brokers. (Only in pylogd.)",
        "Topics", mode=Mode.DYNAMIC,
    ),
    Setting(
        "coordinator.labels", ConfigType.LIST, (),
        "Which brokers coordinate which groups and transactional ids, such as "
        "`online:0-19:pay-,online:0-19:shop-,logs:20-39:log-`: each entry is a label, the first and the last of its "
        "partitions, and a prefix of ids. Ids with the prefix are stored in these partitions of `__consumer_offsets` "
        "and `__transaction_state`, which are only on brokers that carry the label; all other ids in the partitions "
        "that no entry names. Of several prefixes the longest counts. It becomes a setting of these topics when they "
        "are created, and can't be changed then. Empty: any broker may coordinate. Set it to the same value on all "
        "brokers. (Only in pylogd; see docs/labels.md.)",
        "Topics",
    ),
    Setting(
        "max.connections", ConfigType.INT, 2147483647,
        "Most client connections of the broker at a time; further connections wait, in order, until others end. "
        "`listener.name.<listener>.max.connections` is an additional limit for a single listener. If there are other "
        "listeners, the inter-broker listener is exempt from the broker's limit: for its connections, those "
        "connections of the other listeners are closed that have been idle for longest. If there are no other "
        "listeners, a value set at run time must be at least 10. (Kafka accepts 0, after which no client can connect "
        "to change it back. If a value set at run time locks operators out, start the broker with `--set "
        "ignored.dynamic.settings=max.connections`.)",
        "Connections", minimum=1, mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "max.connections.per.ip", ConfigType.INT, 2147483647,
        "Most client connections at a time from one address; further connections are closed at once. 0 refuses all "
        "addresses that `max.connections.per.ip.overrides` does not name. A value set at run time must be at least 10. "
        "(Only in pylogd.)",
        "Connections", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "max.connections.per.ip.overrides", ConfigType.LIST, (),
        "Other limits for single addresses: `address:connections`, separated by commas. Write IPv6 addresses in "
        "brackets. (Kafka also takes host names.)",
        "Connections", mode=Mode.DYNAMIC,
    ),
    Setting(
        "max.connection.creation.rate", ConfigType.INT, 2147483647,
        "Most connections accepted in a second, on all listeners together; further connections wait, most of them in "
        "the kernel's queue (`socket.listen.backlog.size`). `listener.name.<listener>.max.connection.creation.rate` is "
        "an additional limit for a single listener. The inter-broker listener is exempt from the broker's limit.",
        "Connections", minimum=1, mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "connections.max.idle.ms", ConfigType.LONG, 600000,
        "Idle time after which a connection is closed; -1 for never.", "Connections", minimum=-1,
    ),
    Setting(
        "connection.handshake.timeout.ms", ConfigType.INT, 15000,
        "How long a new connection may take for the header of the PROXY protocol, the TLS handshake and SASL "
        "authentication together before it is closed. (Only in pylogd.)",
        "Connections", minimum=1, mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "max.connections.handshaking", ConfigType.INT, 1000,
        "Most connections of a listener that have not finished their handshake (see "
        "`connection.handshake.timeout.ms`). If there is one more, one of the address with most is closed: the oldest "
        "that has said nothing. Addresses from which a client has authenticated go last. (Only in pylogd.)",
        "Connections", minimum=1, mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "request.receive.timeout.ms", ConfigType.INT, 30000,
        "In each period of this length, the broker must receive at least 32 KiB of an unfinished request, or the rest "
        "of it; otherwise the connection is closed. (Only in pylogd.)",
        "Connections", minimum=1000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "queued.max.request.bytes", ConfigType.LONG, 104857600,
        "Memory, over all connections, for large requests (64 KiB and more) that have arrived in part or wait for "
        "earlier requests of their connection. When it is used up, the broker stops reading from connections that are "
        "in the middle of a large request; they continue in the order in which they arrived. One of them always "
        "continues; the others read at most 16 KiB at a time. One long request (1/32 of this memory or more) gets "
        "memory for its full length. The other long requests together get at most 3/16, and all other requests share "
        "the rest, at least a quarter. With `Q` for this setting and `S` for `socket.request.max.bytes`, requests use "
        "at most the larger of `Q` and `Q/4 + S`, plus `Q/32`. -1: no limit. (Kafka's default is -1, and it can't be "
        "changed at run time.)",
        "Connections", minimum=-1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "socket.reuse.port", ConfigType.BOOLEAN, False,
        "Whether other processes of this user may listen on the same port (SO_REUSEPORT), over which the kernel then "
        "spreads new connections. `pylogd broker --workers` sets it for the port that workers share. (Only in pylogd.)",
        "Connections", per_listener=True,
    ),
    Setting(
        "proxy.protocol", ConfigType.BOOLEAN, False,
        "Whether connections begin with a header of the PROXY protocol, version 1 or 2, in which a load balancer names "
        "the client's address. Connections without this header are closed. Set it for single listeners: "
        "`listener.name.<listener>.proxy.protocol`. Whoever can connect to such a listener may claim any address, so "
        "set `proxy.protocol.networks` too. (Only in pylogd.)",
        "Connections", per_listener=True,
    ),
    Setting(
        "proxy.protocol.networks", ConfigType.LIST, (),
        "The addresses and networks of the load balancers, such as `10.1.0.7,10.2.0.0/16`. A listener with "
        "`proxy.protocol` closes connections from other addresses at once. Empty: it accepts connections from all "
        "addresses. (Only in pylogd.)",
        "Connections", per_listener=True,
    ),
    Setting(
        "sasl.server.max.receive.size", ConfigType.INT, 524288,
        "Largest request in bytes before a client has authenticated with SASL.", "Connections", minimum=1,
        per_listener=True,
    ),
    Setting(
        "ignored.dynamic.settings", ConfigType.LIST, (),
        "Names of settings whose run-time values this broker ignores. Use it to connect again after a change that "
        "locked operators out. (Only in pylogd.)",
        "Connections",
    ),
    Setting(
        "ssl.keystore.type", ConfigType.STRING, "PEM",
        "The format of the certificate and key: PEM files, or PEM text in `ssl.keystore.certificate.chain`. (Kafka's "
        "default is JKS, which is not supported.)",
        "TLS", choices=("PEM",), mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "ssl.keystore.location", ConfigType.STRING, None,
        "The PEM file with the broker's private key and its certificate chain, without the authority's certificate. Or "
        "a directory of such files (`*.pem`): the server name (SNI) that a client sends selects the file; without a "
        "match, the first file by name is used. The file is read again when it changes, and on SIGHUP.",
        "TLS", mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.keystore.key", ConfigType.PASSWORD, None,
        "The private key as PEM text, instead of `ssl.keystore.location`; needs `ssl.keystore.certificate.chain`.",
        "TLS", mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.keystore.certificate.chain", ConfigType.PASSWORD, None,
        "The certificate as PEM text, followed by the certificates between it and its authority; needs "
        "`ssl.keystore.key`.",
        "TLS", mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.key.password", ConfigType.PASSWORD, None, "The password of an encrypted private key.", "TLS",
        mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.truststore.type", ConfigType.STRING, "PEM",
        "The format of the trusted certificates. (Kafka's default is JKS.)", "TLS", choices=("PEM",), mode=Mode.DYNAMIC,
        per_listener=True,
    ),
    Setting(
        "ssl.truststore.location", ConfigType.STRING, None,
        "The PEM file, or directory of PEM files (`*.pem`), with the certificate authorities that clients' and other "
        "brokers' certificates are checked against. It is read again when it changes, and on SIGHUP.",
        "TLS", mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.truststore.certificates", ConfigType.PASSWORD, None,
        "The certificate authorities as PEM text, instead of `ssl.truststore.location`.", "TLS", mode=Mode.DYNAMIC,
        nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.client.auth", ConfigType.STRING, "none",
        "Whether clients present a certificate. `none`: no; `requested`: they may, and an invalid certificate is "
        "refused; `required`: they must. The principal of a client on an SSL listener comes from its certificate, see "
        "`ssl.principal.mapping.rules`; without one it is `User:ANONYMOUS`.",
        "TLS", choices=("none", "requested", "required"), mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "ssl.principal.mapping.rules", ConfigType.STRING, "DEFAULT",
        "Rules that map the subject of a client's certificate, such as `CN=app,O=Example`, to the name of a principal; "
        "the first rule that matches decides. `RULE:pattern/replacement/`, optionally followed by `L` (lower case) or "
        "`U` (upper case), replaces a subject that the pattern matches as a whole; `$1` is the pattern's first group. "
        "`DEFAULT` uses the subject unchanged. Rules are separated by commas. A certificate that no rule matches is "
        "refused.",
        "TLS", mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "ssl.enabled.protocols", ConfigType.LIST, ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are accepted.",
        "TLS", choices=("TLSv1.2", "TLSv1.3"), mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "ssl.cipher.suites", ConfigType.LIST, None,
        "The cipher suites that are accepted, by their IANA or OpenSSL names, most preferred first. Unset: the suites "
        "with forward secrecy and authenticated encryption.",
        "TLS", mode=Mode.DYNAMIC, nullable=True, per_listener=True,
    ),
    Setting(
        "ssl.endpoint.identification.algorithm", ConfigType.STRING, "https",
        "Whether the certificate of another broker must name the host that this broker connects to: https for yes, "
        "empty for no.",
        "TLS", choices=("https", ""), mode=Mode.DYNAMIC, per_listener=True,
    ),
    Setting(
        "password.encoder.secret", ConfigType.PASSWORD, None,
        "The secret with which the metadata store encrypts private keys and passwords that are set at run time. It "
        "must be the same for all brokers. Unset: private keys and passwords can't be set at run time.",
        "TLS", nullable=True,
    ),
    Setting(
        "password.encoder.old.secret", ConfigType.PASSWORD, None,
        "The former `password.encoder.secret`, during a change of the secret: values that it encrypted can still be "
        "read.",
        "TLS", nullable=True,
    ),
    Setting(
        "socket.request.max.bytes", ConfigType.INT, 104857600,
        "Largest request in bytes. A frame that announces more, or a negative length, closes the connection before "
        "memory is allocated for it.",
        "Network", minimum=1,
    ),
    Setting(
        "socket.send.buffer.bytes", ConfigType.INT, -1,
        "SO_SNDBUF of client connections. -1: the system adapts the buffer to the connection, so that a fetch needs "
        "few calls. (Kafka's default is 102400.)",
        "Network", minimum=-1,
    ),
    Setting(
        "socket.receive.buffer.bytes", ConfigType.INT, -1,
        "SO_RCVBUF of client connections. -1: the system decides. (Kafka's default is 102400.)", "Network", minimum=-1,
    ),
    Setting(
        "socket.listen.backlog.size", ConfigType.INT, 1024,
        "Connections of a listener that the kernel queues before they are accepted; the kernel takes the lesser of "
        "this and `net.core.somaxconn`, 4096 since Linux 5.4. When the queue is full, the kernel drops the packets of "
        "new clients, which retry after 1, 3, 7 and 15 s. (Kafka's default is 50. This is too few here: one thread "
        "accepts and serves connections, and after a restart all clients return at once. A queue that is not full uses "
        "memory only for the connections in it.)",
        "Network", minimum=1,
    ),
    Setting(
        "connection.max.inflight.requests", ConfigType.INT, 100,
        "Number of unanswered requests of a connection at which the broker stops reading from the connection. (Only in "
        "pylogd.)",
        "Network", minimum=1,
    ),
    Setting(
        "connection.max.queued.response.bytes", ConfigType.INT, 1048576,
        "Bytes of unsent replies, without file slices, at which the broker stops reading from a connection. (Only in "
        "pylogd.)",
        "Network", minimum=1024,
    ),
    Setting(
        "sendfile.max.bytes", ConfigType.INT, 2097152,
        "Most bytes handed to the kernel in one sendfile call, so that one fast reader can't delay the others. (Only "
        "in pylogd.)",
        "Network", minimum=4096,
    ),
    Setting(
        "fetch.max.bytes", ConfigType.INT, 57671680,
        "Most bytes in the answer to one Fetch, whatever the client asks for. A first batch larger than this is still "
        "returned whole.",
        "Requests", minimum=1024,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots", ConfigType.INT, 1000,
        "Most incremental fetch sessions (KIP-227) that the broker keeps. 0 disables sessions.", "Requests", minimum=0,
    ),
    Setting(
        "request.max.elements", ConfigType.INT, 20000,
        "Most array elements (topics, partitions, groups, ...) in one request. If a request has more elements, the "
        "broker closes its connection before it builds them. The limit does not apply to requests between brokers. "
        "Raise it if requests of clients name more elements. (Only in pylogd.)",
        "Requests", minimum=1000, maximum=1000000,
    ),
    Setting(
        "response.max.bytes", ConfigType.INT, 16777216,
        "Most bytes in the answer to a request that describes settings, groups, offsets or topics; the limit for "
        "records is `fetch.max.bytes`. If an answer would be larger, the broker answers with an error that says so. "
        "(Only in pylogd.)",
        "Requests", minimum=65536,
    ),
    Setting(
        "max.incremental.fetch.session.cache.partitions", ConfigType.INT, 100000,
        "Most partitions in the incremental fetch sessions of all clients together; sessions of other brokers are not "
        "counted. A client whose partitions exceed the limit fetches without a session. (Only in pylogd.)",
        "Requests", minimum=0,
    ),
    Setting(
        "authorizer.class.name", ConfigType.STRING, "",
        "The authorizer, which decides what clients may do. Empty: everybody may do everything. "
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer`: ACLs decide; `pylogd acls` shows and changes them. "
        "Or the dotted name of your own Python class, such as `company.policies.Authorizer`; see "
        "docs/authorization.md.",
        "Authorization",
    ),
    Setting(
        "super.users", ConfigType.STRING, "",
        "Principals who may do everything, separated by semicolons: `User:admin;User:CN=broker1,O=Example`. The "
        "brokers of a cluster must be super users, or must be allowed CLUSTER_ACTION on the cluster.",
        "Authorization",
    ),
    Setting(
        "allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, False,
        "Whether everybody may use a resource for which no ACL exists.", "Authorization",
    ),
    Setting(
        "principal.builder.class", ConfigType.STRING, None,
        "The dotted name of a Python class that determines a client's principal from its certificate or its SASL user; "
        "see docs/authorization.md. Unset: the principal is the distinguished name or the user name.",
        "Authorization", mode=Mode.DYNAMIC, nullable=True, per_broker=True,
    ),
    Setting(
        "audit.log.path", ConfigType.STRING, None,
        "A file to which denied and administrative operations are appended, as lines of JSON. It is reopened on "
        "SIGHUP, for logrotate. Unset: no audit log. (Only in pylogd; Kafka has a logger.)",
        "Authorization", nullable=True,
    ),
    Setting(
        "audit.log.max.queued", ConfigType.INT, 10000,
        "Most events that wait to be written to the audit log. Of further events, those of the principal or address "
        "with most events are only counted; their number is written when the queue has space again. (Only in pylogd.)",
        "Authorization", minimum=1,
    ),
    Setting(
        "audit.log.denials.per.minute", ConfigType.INT, 100,
        "Most denied operations of one principal from one address that are written in a minute. At the end of the "
        "minute the number of further ones is written. (Only in pylogd.)",
        "Authorization", minimum=1,
    ),
    Setting(
        "log.dirs", ConfigType.LIST, ("/var/lib/pylogd",),
        "Data directories, ideally one per disk. A new partition goes to the directory with the fewest partitions. "
        "(Kafka's default is /tmp/kafka-logs.)",
        "Log",
    ),
    Setting(
        "cordoned.log.dirs", ConfigType.LIST, (),
        "Directories in `log.dirs` that get no new partitions; their existing partitions stay in use. `*` means all "
        "directories: the broker then gets no new replicas. Use it to empty a disk or a broker (KIP-1066).",
        "Log", mode=Mode.DYNAMIC,
    ),
    Setting(
        "message.max.bytes", ConfigType.INT, 1048588, "Largest record batch in bytes, as stored.", "Log", minimum=0,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.segment.bytes", ConfigType.INT, 1073741824,
        "Size at which a segment file is closed and the next one started.", "Log", minimum=1048576, mode=Mode.DYNAMIC,
    ),
    Setting(
        "internal.segment.bytes", ConfigType.INT, None,
        "For tests: a segment size that may be smaller than `log.segment.bytes` allows. It holds for topics that do "
        "not set `segment.bytes`. (In Kafka only topics have it.)",
        "Log", minimum=14, mode=Mode.DYNAMIC, nullable=True, internal=True,
    ),
    Setting(
        "log.roll.ms", ConfigType.LONG, None,
        "Age at which a segment is closed and the next one started, even if it is not full. Unset: `log.roll.hours`.",
        "Log", minimum=1, mode=Mode.DYNAMIC, nullable=True, synonyms=(("log.roll.hours", 3600000),),
    ),
    Setting(
        "log.roll.hours", ConfigType.INT, 168, "As `log.roll.ms`, in hours.", "Log", minimum=1,
    ),
    Setting(
        "log.roll.jitter.ms", ConfigType.LONG, None,
        "A random time up to this is subtracted from the maximum age of a segment, so that partitions don't all roll "
        "at the same moment. Unset: `log.roll.jitter.hours`.",
        "Log", minimum=0, mode=Mode.DYNAMIC, nullable=True, synonyms=(("log.roll.jitter.hours", 3600000),),
    ),
    Setting(
        "log.roll.jitter.hours", ConfigType.INT, 0, "As `log.roll.jitter.ms`, in hours.", "Log", minimum=0,
    ),
    Setting(
        "log.dir.check.interval.ms", ConfigType.LONG, 500,
        "How often the broker checks that the data directories exist and can be written to. Failures are also found at "
        "any use of a directory; this check finds failures of directories that are not in use at the moment.",
        "Log", minimum=100,
    ),
    Setting(
        "log.index.interval.bytes", ConfigType.INT, 4096, "Bytes of log between two entries of the offset index.",
        "Log", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.index.size.max.bytes", ConfigType.INT, 10485760,
        "Largest index file of a segment; a full one rolls the segment.", "Log", minimum=4, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.preallocate", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: files always grow as they are written.", "Log",
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.type", ConfigType.STRING, "CreateTime",
        "Whose time stamp a message carries: the producer's (CreateTime) or the broker's (LogAppendTime).", "Log",
        choices=("CreateTime", "LogAppendTime"), mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.before.max.ms", ConfigType.LONG, 9223372036854775807,
        "With CreateTime: how far a message's time stamp may lie before the broker's clock. Older messages are "
        "refused.",
        "Log", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.after.max.ms", ConfigType.LONG, 3600000,
        "With CreateTime: how far a message's time stamp may lie ahead of the broker's clock. Later messages are "
        "refused.",
        "Log", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.validate.records", ConfigType.STRING, "auto",
        "Whether the broker checks each record of a producer's uncompressed batch before it appends the batch: "
        "structure, offsets and time stamps. `auto` checks records if pylogd was built with its compiled loop (by a C "
        "compiler); `true` checks them without it too, which takes a thousand times as long. Batch headers are always "
        "checked. Records are always checked if the topic needs it (compaction, `message.timestamp.before.max.ms`). "
        "(Only in pylogd.)",
        "Log", choices=("auto", "true", "false"), mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.validate.compressed", ConfigType.BOOLEAN, False,
        "Whether compressed batches are decompressed, in a thread, to check their records too. Otherwise the broker "
        "checks only the header, and that the compressed records start like the codec's frames. (Only in pylogd; Kafka "
        "always decompresses.)",
        "Log", mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.type", ConfigType.STRING, "producer",
        "The codec in which batches are stored. `producer`: that of each batch. With another value the broker "
        "compresses a producer's batch anew if the batch has another codec, and checks its records; this is done in a "
        "thread. A batch that has the codec already is stored as it is, whatever its level.",
        "Log", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.gzip.level", ConfigType.INT, -1,
        "The level at which the broker compresses with gzip, if `compression.type` is `gzip`. -1: the codec's default.",
        "Log", minimum=1, maximum=9, mode=Mode.DYNAMIC, special=(-1,),
    ),
    Setting(
        "compression.lz4.level", ConfigType.INT, 9,
        "The level at which the broker compresses with LZ4, if `compression.type` is `lz4`. As in Kafka the default "
        "means the fast compressor, and any other level the one with a high ratio; levels above 12 equal 12.",
        "Log", minimum=1, maximum=17, mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.zstd.level", ConfigType.INT, 3,
        "The level at which the broker compresses with Zstandard, if `compression.type` is `zstd`.", "Log",
        minimum=-131072, maximum=22, mode=Mode.DYNAMIC,
    ),
    Setting(
        "max.decompressed.message.bytes", ConfigType.INT, 2147483639,
        "Largest record of a compressed batch, in bytes when it is decompressed. With a smaller value than the default "
        "the broker decompresses all compressed batches of producers, in a thread, and refuses those with a larger "
        "record. (Kafka checks it in compactions and look-ups by time too.)",
        "Log", minimum=1, maximum=2147483639, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.block.cache.bytes", ConfigType.LONG, 0,
        "Memory for the block cache. It keeps the records appended last for consumers and followers; followers' writes "
        "and reads of lagging consumers do not evict them: see `docs/block-cache.md`. 0: no block cache, only the "
        "kernel's page cache. (Kafka has no such setting.)",
        "Log", minimum=0,
    ),
    Setting(
        "log.retention.ms", ConfigType.LONG, None,
        "Age at which a closed segment is deleted; -1 for never. Unset: `log.retention.minutes`.", "Retention",
        minimum=1, mode=Mode.DYNAMIC, nullable=True,
        synonyms=(("log.retention.minutes", 60000), ("log.retention.hours", 3600000)), special=(-1,),
    ),
    Setting(
        "log.retention.minutes", ConfigType.INT, None,
        "As `log.retention.ms`, in minutes. Unset: `log.retention.hours`.", "Retention", minimum=1, nullable=True,
        special=(-1,),
    ),
    Setting(
        "log.retention.hours", ConfigType.INT, 168, "As `log.retention.ms`, in hours.", "Retention", minimum=1,
        special=(-1,),
    ),
    Setting(
        "log.retention.bytes", ConfigType.LONG, -1,
        "Size of a partition above which its oldest segments are deleted; -1 for no limit.", "Retention",
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.retention.check.interval.ms", ConfigType.LONG, 300000,
        "How often the broker checks for segments to delete.", "Retention", minimum=1,
    ),
    Setting(
        "log.cleanup.policy", ConfigType.LIST, ("delete",),
        "How old data is removed: `delete` removes it by age and size, `compact` keeps the last value of each key, or "
        "both.",
        "Retention", choices=("compact", "delete"), mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.segment.delete.delay.ms", ConfigType.LONG, 60000,
        "Time between a segment's removal from the log and the removal of its files.", "Retention", minimum=0,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.flush.interval.messages", ConfigType.LONG, 9223372036854775807,
        "Messages appended to a partition before they are flushed to the disk. With the default the operating system "
        "decides when to write.",
        "Flush", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.flush.interval.ms", ConfigType.LONG, None,
        "Longest time before an appended message is flushed to the disk. Unset: `log.flush.scheduler.interval.ms`.",
        "Flush", minimum=0, mode=Mode.DYNAMIC, nullable=True, synonyms=(("log.flush.scheduler.interval.ms", 1),),
    ),
    Setting(
        "log.flush.visible", ConfigType.BOOLEAN, False,
        "Whether consumers see a message only after it was flushed to the disk; acks=all is then also answered after "
        "the flush. Each append is followed by a flush, which covers all appends before it. (Only in pylogd.)",
        "Flush", mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.flush.scheduler.interval.ms", ConfigType.LONG, 9223372036854775807,
        "How often the broker checks for partitions to flush.", "Flush", minimum=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms", ConfigType.INT, 60000,
        "How often the recovery points and the log start offsets are written. After a crash, recovery scans only the "
        "records after the recovery point.",
        "Flush", minimum=1,
    ),
    Setting(
        "log.cleaner.enable", ConfigType.BOOLEAN, True,
        "Whether logs of topics with `cleanup.policy=compact` are compacted. If not, these logs only grow.",
        "Compaction",
    ),
    Setting(
        "log.cleaner.threads", ConfigType.INT, 1,
        "Threads that compact logs. Each works on one log at a time. With `log.write.queues` each data directory has "
        "this number of threads, and no thread waits for the disk of another directory.",
        "Compaction", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second", ConfigType.DOUBLE, 9.223372036854776e18,
        "Most bytes per second that all cleaner threads together read and write. (Kafka's default is the largest "
        "double; both mean no limit.)",
        "Compaction", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size", ConfigType.LONG, 134217728,
        "Memory for the key maps of all cleaner threads together, 24 bytes per key. A log with more keys is compacted "
        "in several rounds. Changes hold for the next log of each thread.",
        "Compaction", minimum=1024, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.size", ConfigType.INT, 524288,
        "Bytes that a cleaner thread collects before it writes them.", "Compaction", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor", ConfigType.DOUBLE, 0.9,
        "How full a key map may get. A fuller map holds more keys, but finds each more slowly.", "Compaction",
        minimum=0.1, maximum=0.99, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.backoff.ms", ConfigType.LONG, 15000,
        "How long a cleaner thread sleeps when there is no log to compact.", "Compaction", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio", ConfigType.DOUBLE, 0.5,
        "Uncompacted share of a log at which it is compacted again.", "Compaction", minimum=0, maximum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms", ConfigType.LONG, 0, "Shortest time that a message stays uncompacted.",
        "Compaction", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms", ConfigType.LONG, 9223372036854775807,
        "Time after which a message is compacted regardless of the uncompacted share of its log.", "Compaction",
        minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.cleaner.delete.retention.ms", ConfigType.LONG, 86400000,
        "How long the tombstone of a key can be read from a compacted log.", "Compaction", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "log.write.queues", ConfigType.STRING, "slow",
        "Where appends are written. `off`: on the thread that serves all connections, and a disk that is slow or hangs "
        "stops the whole broker. `always`: in threads of each data directory, with queues by topic; a disk that is "
        "slow or hangs then stops only requests that need this disk. `slow`: as `off` while the disk of a data "
        "directory is quick, at the same cost, and as `always` while it is slow; a disk that hangs without having been "
        "slow before still stops the broker, and other brokers take over when its session with ZooKeeper ends. See "
        "docs/isolation.md. (Only in pylogd.)",
        "Isolation of disks", choices=("off", "slow", "always"),
    ),
    Setting(
        "log.write.queues.per.dir", ConfigType.INT, 4,
        "With `log.write.queues`: number of queues for each data directory; each queue has a thread. Topics are spread "
        "over the queues by the hash of their names; internal topics have an additional queue. (Only in pylogd.)",
        "Isolation of disks", minimum=1, maximum=64,
    ),
    Setting(
        "log.write.queue.max.requests", ConfigType.INT, 500,
        "With `log.write.queues`: most appends that wait in one queue or are being written. Further appends are "
        "refused at once with NOT_ENOUGH_REPLICAS, and clients retry. (Only in pylogd.)",
        "Isolation of disks", minimum=1,
    ),
    Setting(
        "log.write.queue.max.bytes", ConfigType.INT, 16777216,
        "With `log.write.queues`: most bytes of records that wait in one queue or are being written. (Only in pylogd.)",
        "Isolation of disks", minimum=1,
    ),
    Setting(
        "log.dir.failure.timeout.ms", ConfigType.LONG, 30000,
        "With `log.write.queues`: if a call to a data directory has not returned after this time, the directory fails, "
        "as after an error of its disk: other brokers take over the partitions that this broker leads there. (In "
        "Kafka, how long a broker tries to tell the controller of a failed directory before it stops.)",
        "Isolation of disks", minimum=1,
    ),
    Setting(
        "sasl.enabled.mechanisms", ConfigType.LIST, (),
        "The mechanisms that SASL listeners offer. A SASL listener needs at least one. Changes of this and of the "
        "credentials of mechanisms hold for new connections. (Kafka's default is GSSAPI.)",
        "Authentication", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
        mode=Mode.DYNAMIC, per_listener=True, per_broker=True,
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol", ConfigType.STRING, None,
        "The mechanism with which this broker authenticates at other brokers, if the listener between brokers uses "
        "SASL. It must be one of the listener's `sasl.enabled.mechanisms`. The credentials are in `sasl.jaas.config` "
        "of that listener and mechanism. (Kafka's default is GSSAPI.)",
        "Authentication", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
        mode=Mode.DYNAMIC, nullable=True, per_broker=True,
    ),
    Setting(
        "sasl.jaas.config", ConfigType.PASSWORD, None,
        'Credentials of a mechanism, as Kafka writes them: `LoginModule required option="value" ...;`. Set it for a '
        "mechanism on a listener, as `listener.name.<listener>.<mechanism>.sasl.jaas.config`. PLAIN: each option "
        "`user_<name>` is a user's password. PLAIN and SCRAM on the listener between brokers: `username` and "
        "`password` of the broker itself. OAUTHBEARER on the listener between brokers: `clientId`, `clientSecret` and "
        "optionally `scope` for the token endpoint. GSSAPI: `keyTab` and `principal`, for connections of clients and "
        "to other brokers. In all other cases no credentials are needed.",
        "Authentication", mode=Mode.DYNAMIC, nullable=True, per_listener=True, per_broker=True,
    ),
    Setting(
        "sasl.plain.users.file", ConfigType.STRING, None,
        "A file with the users of PLAIN, instead of `sasl.jaas.config`. Each line is `user:password`; instead of the "
        "password, a line may have the hash that `pylogd users hash` prints. The file is read again when it has "
        "changed. (Only in pylogd.)",
        "Authentication", nullable=True, per_listener=True,
    ),
    Setting(
        "connections.max.reauth.ms", ConfigType.LONG, 0,
        "How long a SASL session lasts. A client that has not authenticated again by then is disconnected at its next "
        "request. 0: without limit, but never longer than an access token or a delegation token. It can be set for a "
        "mechanism on a listener.",
        "Authentication", minimum=0, per_listener=True,
    ),
    Setting(
        "connection.failed.authentication.delay.ms", ConfigType.INT, 100,
        "How long the broker delays the answer to a failed authentication. Then it closes the connection.",
        "Authentication", minimum=0, maximum=60000,
    ),
    Setting(
        "sasl.kerberos.service.name", ConfigType.STRING, None,
        "GSSAPI: the first part of the broker's principal, `<service>/<host>@<REALM>`. Unset: `serviceName` or "
        "`principal` in `sasl.jaas.config`.",
        "Authentication", mode=Mode.DYNAMIC, nullable=True, per_listener=True, per_broker=True,
    ),
    Setting(
        "sasl.kerberos.principal.to.local.rules", ConfigType.LIST, ("DEFAULT",),
        "GSSAPI: rules that map a Kerberos principal to a user's name; the first rule that matches decides. DEFAULT "
        "uses the first part of principals of the broker's realm; other rules are "
        "`RULE:[n:format](match)s/pattern/replacement/g/L`.",
        "Authentication", mode=Mode.DYNAMIC, per_listener=True, per_broker=True,
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url", ConfigType.STRING, None,
        "Where this broker gets the token with which it authenticates at other brokers, if "
        "`sasl.mechanism.inter.broker.protocol` is OAUTHBEARER: the `https:` URL of an OAuth 2 server's token "
        "endpoint, which gets `clientId` and `clientSecret` of `sasl.jaas.config`; or a `file:` URL, read at each "
        "authentication.",
        "OAUTHBEARER", nullable=True, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url", ConfigType.STRING, None,
        "The `https:` or `file:` URL of the JSON web key set with which access tokens are verified.", "OAUTHBEARER",
        nullable=True, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", ConfigType.LONG, 3600000,
        "How long keys are used before they are fetched again.", "OAUTHBEARER", minimum=1, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", ConfigType.LONG, 10000,
        "How long to wait before keys are fetched again after a failure, or for a token whose key is not known.",
        "OAUTHBEARER", minimum=1, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.audience", ConfigType.LIST, (),
        "A token's `aud` must contain one of these values. Empty: any value.", "OAUTHBEARER", per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer", ConfigType.STRING, None,
        "The value that a token's `iss` must have. Unset: any value.", "OAUTHBEARER", nullable=True, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.scope", ConfigType.LIST, (),
        "A token's scope must contain all of these values. (Only in pylogd.)", "OAUTHBEARER", per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.scope.claim.name", ConfigType.STRING, "scope", "The claim that has the scope.", "OAUTHBEARER",
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name", ConfigType.STRING, "sub", "The claim that has the user's name.",
        "OAUTHBEARER", per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds", ConfigType.INT, 30,
        "By how much the clocks of the issuer and of the broker may differ. A session lasts as long as its token is "
        "accepted.",
        "OAUTHBEARER", minimum=0, maximum=3600, per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.unsecured.tokens.enable", ConfigType.BOOLEAN, False,
        "Whether to accept unsigned tokens instead of signed ones. Everybody can make such tokens, so use this for "
        "development only. (Only in pylogd; with Kafka it is the default.)",
        "OAUTHBEARER", per_listener=True,
    ),
    Setting(
        "delegation.token.secret.key", ConfigType.PASSWORD, None,
        "The secret from which delegation tokens are made. It must be the same for all brokers. Unset: no delegation "
        "tokens.",
        "Delegation tokens", nullable=True,
    ),
    Setting(
        "delegation.token.max.lifetime.ms", ConfigType.LONG, 604800000, "How long a delegation token can be renewed.",
        "Delegation tokens", minimum=1,
    ),
    Setting(
        "delegation.token.expiry.time.ms", ConfigType.LONG, 86400000,
        "How long a delegation token lasts unless it is renewed.", "Delegation tokens", minimum=1,
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms", ConfigType.LONG, 3600000,
        "How often expired delegation tokens are deleted.", "Delegation tokens", minimum=1, maximum=2147483647,
    ),
    Setting(
        "delegation.token.max.per.requester", ConfigType.INT, 10000,
        "Most unexpired delegation tokens that one user has requested. Further requests get POLICY_VIOLATION. (Only in "
        "pylogd.)",
        "Delegation tokens", minimum=1,
    ),
    Setting(
        "min.insync.replicas", ConfigType.INT, 1,
        "In-sync replicas that must have a message before acks=all is answered (all of them if a partition has fewer "
        "replicas). With fewer in sync, produce requests with acks=all are refused.",
        "Replication and producers", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, False,
        "Whether a replica that is not in sync may become leader when no other is left. The partition stays available, "
        "but loses messages.",
        "Replication and producers", mode=Mode.DYNAMIC,
    ),
    Setting(
        "producer.id.expiration.ms", ConfigType.INT, 86400000,
        "Time without writes to a partition after which an idempotent producer is forgotten there.",
        "Replication and producers", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "producer.ids.max.per.partition", ConfigType.INT, 10000,
        "Most idempotent producers that are remembered for each partition. If there are more, the producers that have "
        "not written for longest are forgotten: a batch that such a producer sends again is then appended twice. (Only "
        "in pylogd.)",
        "Replication and producers", minimum=100,
    ),
    Setting(
        "replica.lag.time.max.ms", ConfigType.LONG, 30000,
        "Time after which a follower that has not caught up with its leader leaves the in-sync set.", "Followers",
        minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "replica.fetch.max.bytes", ConfigType.INT, 1048576,
        "Most bytes of one partition in one fetch of a follower. A first batch larger than this is still returned "
        "whole.",
        "Followers", minimum=1,
    ),
    Setting(
        "replica.fetch.response.max.bytes", ConfigType.INT, 10485760,
        "Most bytes in the answer to one fetch of a follower.", "Followers", minimum=1,
    ),
    Setting(
        "replica.fetch.min.bytes", ConfigType.INT, 1,
        "Bytes that a follower's fetch waits for, up to `replica.fetch.wait.max.ms`.", "Followers", minimum=1,
    ),
    Setting(
        "replica.fetch.wait.max.ms", ConfigType.INT, 500,
        "Longest time that a follower's fetch waits at its leader. Should be well below `replica.lag.time.max.ms`.",
        "Followers", minimum=1,
    ),
    Setting(
        "replica.fetch.backoff.ms", ConfigType.INT, 1000,
        "Pause of a follower after a failed fetch, and of a single partition after the leader answered with an error "
        "for it.",
        "Followers", minimum=1,
    ),
    Setting(
        "replica.socket.timeout.ms", ConfigType.INT, 30000,
        "Time after which a follower closes a connection to a leader that does not answer.", "Followers", minimum=1,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms", ConfigType.LONG, 5000,
        "How often the high watermarks of replicated partitions are written to disk.", "Followers", minimum=1,
    ),
    Setting(
        "replica.selector.class", ConfigType.STRING, None,
        "`org.apache.kafka.common.replica.RackAwareReplicaSelector` sends a consumer to an in-sync replica in its own "
        "rack (KIP-392). Unset: consumers read from the leader.",
        "Followers", choices=("org.apache.kafka.common.replica.RackAwareReplicaSelector",), nullable=True,
    ),
    Setting(
        "leader.replication.throttled.rate", ConfigType.LONG, 9223372036854775807,
        "Most bytes per second that this broker sends to throttled replicas that are not in sync. (In Kafka only a "
        "dynamic setting.)",
        "Followers", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "follower.replication.throttled.rate", ConfigType.LONG, 9223372036854775807,
        "Most bytes per second that this broker fetches for throttled replicas that are not in sync. (In Kafka only a "
        "dynamic setting.)",
        "Followers", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "leader.replication.throttled.replicas", ConfigType.LIST, (),
        "Replicas whose fetches are throttled by their leader: `partition:broker, ...`, or `*` for all. Set it for a "
        "topic. (In Kafka only a topic setting.)",
        "Followers", mode=Mode.DYNAMIC,
    ),
    Setting(
        "follower.replication.throttled.replicas", ConfigType.LIST, (),
        "Replicas that throttle their own fetches: `partition:broker, ...`, or `*` for all. Set it for a topic. (In "
        "Kafka only a topic setting.)",
        "Followers", mode=Mode.DYNAMIC,
    ),
    Setting(
        "quota.window.num", ConfigType.INT, 11,
        "Number of windows over which the rates of clients are measured. What a client did not use in these windows, "
        "it may use later.",
        "Client quotas", minimum=1,
    ),
    Setting(
        "quota.window.size.seconds", ConfigType.INT, 1, "Length of each of these windows.", "Client quotas", minimum=1,
    ),
    Setting(
        "controller.quota.window.num", ConfigType.INT, 11,
        "Number of windows for `controller_mutation_rate`: the partitions that a client may create and delete at once "
        "are its rate times this number of seconds.",
        "Client quotas", minimum=1,
    ),
    Setting(
        "controller.quota.window.size.seconds", ConfigType.INT, 1, "Length of each of these windows.", "Client quotas",
        minimum=1,
    ),
    Setting(
        "quota.producer.default", ConfigType.LONG, 9223372036854775807,
        "Bytes a second that each client id may produce if no quota is set for it at run time (`pylogd quotas`).",
        "Client quotas", minimum=1,
    ),
    Setting(
        "quota.consumer.default", ConfigType.LONG, 9223372036854775807,
        "Bytes a second that each client id may fetch if no quota is set for it at run time (`pylogd quotas`).",
        "Client quotas", minimum=1,
    ),
    Setting(
        "lagging.consumer.throttle.enable", ConfigType.BOOLEAN, False,
        "Whether lagging consumers have to wait while their disk is busy, so that the disk stays quick for producers "
        "and for consumers that keep up. (Only in pylogd.)",
        "Lagging consumers", mode=Mode.DYNAMIC,
    ),
    Setting(
        "lagging.consumer.lag.bytes", ConfigType.LONG, 67108864,
        "With `lagging.consumer.throttle.enable`: a consumer lags in a partition if at least so many bytes lie between "
        "its offset and the log's end. A consumer that lags less never waits. Choose at most the bytes of a partition "
        "that the page cache always holds. (Only in pylogd.)",
        "Lagging consumers", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "lagging.consumer.disk.utilization.low", ConfigType.DOUBLE, 0.55,
        "With `lagging.consumer.throttle.enable`: below this utilization of a disk, a share from 0 to 1, lagging "
        "consumers get more of the disk. (Only in pylogd.)",
        "Lagging consumers", minimum=0, maximum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "lagging.consumer.disk.utilization.high", ConfigType.DOUBLE, 0.75,
        "With `lagging.consumer.throttle.enable`: above this utilization of a disk, a share from 0 to 1, lagging "
        "consumers get less of the disk. (Only in pylogd.)",
        "Lagging consumers", minimum=0, maximum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "lagging.consumer.min.bytes.per.second", ConfigType.LONG, 1048576,
        "With `lagging.consumer.throttle.enable`: bytes per second that all lagging consumers together may always read "
        "from a disk, however busy it is. (Only in pylogd.)",
        "Lagging consumers", minimum=1024, mode=Mode.DYNAMIC,
    ),
    Setting(
        "auto.leader.rebalance.enable", ConfigType.BOOLEAN, True,
        "Whether the controller regularly makes the preferred replicas leaders again.", "Leaders", mode=Mode.DYNAMIC,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds", ConfigType.LONG, 300,
        "How often the controller checks whether the preferred replicas lead.", "Leaders", minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage", ConfigType.INT, 10,
        "Percentage of a broker's preferred partitions that other brokers may lead before the controller moves the "
        "leaderships back.",
        "Leaders", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "controlled.shutdown.enable", ConfigType.BOOLEAN, True,
        "Whether a stopping broker first hands over its leaderships to other brokers.", "Leaders",
    ),
    Setting(
        "controlled.shutdown.max.retries", ConfigType.INT, 3,
        "A stopping broker waits for the handover of its leaderships for at most this number times "
        "`controlled.shutdown.retry.backoff.ms`.",
        "Leaders", minimum=1,
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms", ConfigType.LONG, 5000,
        "See `controlled.shutdown.max.retries`. The request is sent only once, because the controller acts as soon as "
        "it learns of the stop.",
        "Leaders", minimum=1,
    ),
    Setting(
        "group.min.session.timeout.ms", ConfigType.INT, 6000, "Shortest session timeout that a member may request.",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "group.max.session.timeout.ms", ConfigType.INT, 1800000,
        "Longest session timeout that a member may request. A longer timeout delays the detection of dead members.",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "group.initial.rebalance.delay.ms", ConfigType.INT, 3000,
        "How long an empty group waits for more members after the first has joined, and again after each further one, "
        "so that it does not rebalance for each member.",
        "Consumer groups", minimum=0,
    ),
    Setting(
        "group.max.size", ConfigType.INT, 2147483647, "Most members of a group.", "Consumer groups", minimum=1,
    ),
    Setting(
        "groups.max", ConfigType.INT, 50000,
        "Most groups that this broker coordinates. A client that would make another one gets "
        "COORDINATOR_NOT_AVAILABLE, and the broker's log says so. Half of them are left to clients that authenticate. "
        "Groups that exist stay. (Only in pylogd.)",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "groups.max.per.principal", ConfigType.INT, 10000,
        "Most groups on this broker that one principal has made since the broker has coordinated them; of clients that "
        "have not authenticated, one address. Beyond it as with groups.max. (Only in pylogd.)",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.offsets.max.bytes", ConfigType.LONG, 268435456,
        "Most bytes of memory for the committed offsets of all groups that this broker coordinates, 250 bytes and the "
        "metadata for each. A quarter is for groups that one principal has made, and half is left to clients that "
        "authenticate. Commits of further partitions get COORDINATOR_NOT_AVAILABLE, and the broker's log says so; "
        "commits of known ones are not refused. (Only in pylogd.)",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.metadata.max.bytes", ConfigType.INT, 67108864,
        "Most bytes of metadata that this broker keeps for the members of all groups together. If there is more, "
        "members with more than 16 KiB of metadata get COORDINATOR_NOT_AVAILABLE, and retry. (Only in pylogd.)",
        "Consumer groups", minimum=1048576,
    ),
    Setting(
        "offsets.topic.num.partitions", ConfigType.INT, 50,
        "Partitions of `__consumer_offsets`, which is created at the first use of a group. Each group is kept in one "
        "partition.",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor", ConfigType.INT, 3,
        "Replicas of each partition of `__consumer_offsets`. If there are fewer live brokers, the topic is created "
        "with one replica on each, and gets more as brokers join. (Kafka waits for that many brokers before it creates "
        "the topic.)",
        "Consumer groups", minimum=1, maximum=32767,
    ),
    Setting(
        "offsets.topic.segment.bytes", ConfigType.INT, 104857600,
        "Segment size of `__consumer_offsets`. It is small, so that compaction is quick, and so that a new leader "
        "loads a partition quickly.",
        "Consumer groups", minimum=1024,
    ),
    Setting(
        "offsets.load.buffer.size", ConfigType.INT, 5242880,
        "Bytes read at a time from a partition of `__consumer_offsets` when this broker becomes its leader.",
        "Consumer groups", minimum=1024,
    ),
    Setting(
        "offsets.commit.timeout.ms", ConfigType.INT, 5000,
        "Longest time that a commit waits for the replicas of `__consumer_offsets`.", "Consumer groups", minimum=1,
    ),
    Setting(
        "offset.metadata.max.bytes", ConfigType.INT, 4096,
        "Most bytes of text that a client may store beside an offset.", "Consumer groups", minimum=0, maximum=32767,
    ),
    Setting(
        "offsets.retention.minutes", ConfigType.INT, 10080,
        "How long the offsets of a group without members are kept, and the offsets of topics to which a group no "
        "longer subscribes. Each commit restarts this time.",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms", ConfigType.LONG, 600000,
        "How often the broker checks for expired offsets.", "Consumer groups", minimum=1,
    ),
    Setting(
        "group.consumer.session.timeout.ms", ConfigType.INT, 45000,
        "Time without heartbeats after which a member of a group of the newer protocol (KIP-848) is removed from it.",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms", ConfigType.INT, 5000,
        "How often members of groups of the newer protocol are told to send heartbeats. A change reaches a member with "
        "its next heartbeat.",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms", ConfigType.INT, 45000,
        "Shortest consumer.session.timeout.ms that can be set for a group. (Unlike in Kafka, the broker's own "
        "group.consumer.session.timeout.ms may be shorter.)",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", ConfigType.INT, 60000,
        "Longest consumer.session.timeout.ms that can be set for a group.", "Consumer groups", minimum=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms", ConfigType.INT, 5000,
        "Shortest consumer.heartbeat.interval.ms that can be set for a group. (Unlike in Kafka, the broker's own "
        "group.consumer.heartbeat.interval.ms may be shorter.)",
        "Consumer groups", minimum=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms", ConfigType.INT, 15000,
        "Longest consumer.heartbeat.interval.ms that can be set for a group.", "Consumer groups", minimum=1,
    ),
    Setting(
        "group.consumer.assignment.interval.ms", ConfigType.INT, 0,
        "Shortest time between two assignments of a group of the newer protocol, so that many members that join and "
        "leave together need only one assignment (KIP-1263). Later changes take effect at the first heartbeat after "
        "this time; a new member has no partitions until then. (Kafka: 1,000. Here the members of most groups are "
        "assigned in less than a millisecond, so they need not wait.)",
        "Consumer groups", minimum=0, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", ConfigType.INT, 0,
        "Shortest consumer.assignment.interval.ms that can be set for a group.", "Consumer groups", minimum=0,
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms", ConfigType.INT, 15000,
        "Longest consumer.assignment.interval.ms that can be set for a group.", "Consumer groups", minimum=0,
    ),
    Setting(
        "group.consumer.max.size", ConfigType.INT, 5000,
        "Most members of a group of the newer protocol. When a member joins, the broker examines all members, which "
        "takes about 10 ms for 2,000 members. (Kafka has no limit by default.)",
        "Consumer groups", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.migration.policy", ConfigType.STRING, "bidirectional",
        "Whether a group with members moves between the protocols: With `upgrade`, a classic consumer group changes to "
        "the newer protocol when the first consumer of this protocol joins. With `downgrade`, it changes back when the "
        "last such consumer leaves. `bidirectional` allows both, `disabled` neither.",
        "Consumer groups", choices=("disabled", "upgrade", "downgrade", "bidirectional"), mode=Mode.DYNAMIC,
    ),
    Setting(
        "transaction.max.timeout.ms", ConfigType.INT, 900000,
        "Longest timeout that a producer may set for its transactions. A transaction that is open for longer is "
        "aborted, because read_committed consumers wait for it.",
        "Transactions", minimum=1,
    ),
    Setting(
        "transactional.id.expiration.ms", ConfigType.INT, 604800000,
        "Time without changes after which a transactional id without an open transaction is removed.", "Transactions",
        minimum=1,
    ),
    Setting(
        "transactional.ids.max", ConfigType.INT, 50000,
        "Most transactional ids that this broker coordinates. A producer with a further one gets "
        "COORDINATOR_NOT_AVAILABLE, and the broker's log says so. Half of them are left to clients that authenticate. "
        "(Only in pylogd.)",
        "Transactions", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "transactional.ids.max.per.principal", ConfigType.INT, 10000,
        "Most transactional ids on this broker that one principal has made since the broker has coordinated them; of "
        "clients that have not authenticated, one address. Beyond it as with transactional.ids.max. (Only in pylogd.)",
        "Transactions", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", ConfigType.INT, 10000,
        "How often the coordinator looks for transactions that have been open for too long.", "Transactions", minimum=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms", ConfigType.INT, 3600000,
        "How often the coordinator looks for transactional ids that have expired.", "Transactions", minimum=1,
    ),
    Setting(
        "transaction.partition.verification.enable", ConfigType.BOOLEAN, True,
        "Whether the leader of a partition asks the coordinator, before the first batch of a transaction, whether the "
        "partition is in the transaction. Without this check a late batch may open a transaction that nobody ends.",
        "Transactions", mode=Mode.DYNAMIC,
    ),
    Setting(
        "transaction.state.log.num.partitions", ConfigType.INT, 50,
        "Partitions of `__transaction_state`, which is created at the first use of a transactional id. Each id is kept "
        "in one partition.",
        "Transactions", minimum=1,
    ),
    Setting(
        "transaction.state.log.replication.factor", ConfigType.INT, 3,
        "Replicas of each partition of `__transaction_state`. If there are fewer live brokers, the topic is created "
        "with one replica on each, and gets more as brokers join. (Kafka waits for that many brokers before it creates "
        "the topic.)",
        "Transactions", minimum=1, maximum=32767,
    ),
    Setting(
        "transaction.state.log.min.isr", ConfigType.INT, 2,
        "`min.insync.replicas` of `__transaction_state`, set when it is created.", "Transactions", minimum=1,
    ),
    Setting(
        "transaction.state.log.segment.bytes", ConfigType.INT, 104857600,
        "Segment size of `__transaction_state`. It is small, so that compaction is quick, and so that a new leader "
        "loads a partition quickly.",
        "Transactions", minimum=1024,
    ),
    Setting(
        "transaction.state.log.load.buffer.size", ConfigType.INT, 5242880,
        "Bytes read at a time from a partition of `__transaction_state` when this broker becomes its leader.",
        "Transactions", minimum=1024,
    ),
    Setting(
        "request.timeout.ms", ConfigType.INT, 30000,
        "Longest time that a change of a transaction waits for the replicas of `__transaction_state`, and that a "
        "request about transactions waits for another broker.",
        "Transactions", minimum=1, maximum=2147483647,
    ),
    Setting(
        "background.threads", ConfigType.INT, 10,
        "Most threads for work that waits for a disk: cold reads, flushes, deletions. They are started as needed.",
        "Threads and shutdown", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "num.recovery.threads.per.data.dir", ConfigType.INT, 2,
        "Threads that read logs at start, and flush and close them at shutdown. A value that was set at run time holds "
        "from the shutdown on; at a start the logs are read before such values are, with the value of the file. (In "
        "Kafka for each data directory.)",
        "Threads and shutdown", minimum=1, mode=Mode.DYNAMIC,
    ),
    Setting(
        "controlled.shutdown.drain.ms", ConfigType.LONG, 10000,
        "Longest time that a stopping broker waits for requests in progress before it closes their connections. (Only "
        "in pylogd.)",
        "Threads and shutdown", minimum=0,
    ),
    Setting(
        "metrics.listener", ConfigType.STRING, None,
        "Where the broker answers HTTP requests for `/metrics`, `/healthz` and `/readyz`: `host:port`, or a Twisted "
        "endpoint string such as `tcp:9404:interface=127.0.0.1`. Port 0 picks a free one. Everybody who can connect "
        "may read them, without a password and without encryption: choose an address that only the monitoring system "
        "can reach. Needs the package `prometheus-client` (`pip install 'pylogd-broker[metrics]'`). Unset: no such "
        "listener. (Only in pylogd.)",
        "Metrics and health", nullable=True,
    ),
    Setting(
        "metrics.topics.max", ConfigType.INT, 200,
        "Most topics with their own metrics: the topics that were first written or read since the start. All other "
        "topics are counted together. (Only in pylogd.)",
        "Metrics and health", minimum=0, maximum=100000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.partitions.max", ConfigType.INT, 1000,
        "Most partitions with their own metrics, among the topics that have some: those that were seen first. The "
        "other partitions of a topic are summed up under the partition `(other)`. (Only in pylogd.)",
        "Metrics and health", minimum=0, maximum=100000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.groups.max", ConfigType.INT, 200,
        "Most consumer groups with their own metrics: the groups that lag most. All other groups are counted together. "
        "(Only in pylogd.)",
        "Metrics and health", minimum=0, maximum=100000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.clients.max", ConfigType.INT, 50,
        "Most client ids with their own metrics among the metrics that clients push (KIP-714): the first client ids "
        "since the start, as long as no principal or address has more of them than others. All other client ids are "
        "counted together. It also limits how many users, client ids and addresses with a quota of one kind are shown. "
        "(Only in pylogd.)",
        "Metrics and health", minimum=0, maximum=1000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "telemetry.max.bytes", ConfigType.INT, 1048576,
        "Most bytes of metrics that a client may push at once, compressed and decompressed.", "Metrics and health",
        minimum=1, maximum=16777216, mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.group.lag.interval.ms", ConfigType.LONG, 10000,
        "How often this broker measures the lag of the consumer groups that it coordinates. (Only in pylogd.)",
        "Metrics and health", minimum=1000,
    ),
)

#: Every topic setting by name, in alphabetical order.
TOPIC_SETTINGS: Final[Mapping[str, Setting]] = _by_name(
    Setting(
        "cleanup.policy", ConfigType.LIST, ("delete",),
        "How old data is removed: `delete` removes it by age and size, `compact` keeps the last value of each key, or "
        "both.",
        "Topic", choices=("compact", "delete"), mode=Mode.DYNAMIC, synonyms=(("log.cleanup.policy", 1),),
    ),
    Setting(
        "compression.gzip.level", ConfigType.INT, -1,
        "The level at which the broker compresses with gzip, if `compression.type` is `gzip`. -1: the codec's default.",
        "Topic", minimum=1, maximum=9, mode=Mode.DYNAMIC, synonyms=(("compression.gzip.level", 1),), special=(-1,),
    ),
    Setting(
        "compression.lz4.level", ConfigType.INT, 9,
        "The level at which the broker compresses with LZ4, if `compression.type` is `lz4`. As in Kafka the default "
        "means the fast compressor, and any other level the one with a high ratio; levels above 12 equal 12.",
        "Topic", minimum=1, maximum=17, mode=Mode.DYNAMIC, synonyms=(("compression.lz4.level", 1),),
    ),
    Setting(
        "compression.type", ConfigType.STRING, "producer",
        "The codec in which batches are stored. `producer`: that of each batch. With another value the broker "
        "compresses a producer's batch anew if the batch has another codec, and checks its records; this is done in a "
        "thread. A batch that has the codec already is stored as it is, whatever its level.",
        "Topic", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), mode=Mode.DYNAMIC,
        synonyms=(("compression.type", 1),),
    ),
    Setting(
        "compression.zstd.level", ConfigType.INT, 3,
        "The level at which the broker compresses with Zstandard, if `compression.type` is `zstd`.", "Topic",
        minimum=-131072, maximum=22, mode=Mode.DYNAMIC, synonyms=(("compression.zstd.level", 1),),
    ),
    Setting(
        "coordinator.labels", ConfigType.LIST, (),
        "The `coordinator.labels` of the brokers, as they were when `__consumer_offsets` or `__transaction_state` was "
        "created. Other topics can't have it, and it can't be changed: groups would lose their offsets. (Only in "
        "pylogd.)",
        "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "delete.retention.ms", ConfigType.LONG, 86400000,
        "How long the tombstone of a key can be read from a compacted topic.", "Topic", minimum=0, mode=Mode.DYNAMIC,
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
    ),
    Setting(
        "errors.deadletterqueue.group.enable", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: there are no share groups, which would write records to "
        "the topic that could not be processed.",
        "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "file.delete.delay.ms", ConfigType.LONG, 60000,
        "Time between a segment's removal from the log and the removal of its files.", "Topic", minimum=0,
        mode=Mode.DYNAMIC, synonyms=(("log.segment.delete.delay.ms", 1),),
    ),
    Setting(
        "flush.messages", ConfigType.LONG, 9223372036854775807,
        "Messages appended to a partition before they are flushed to the disk.", "Topic", minimum=1, mode=Mode.DYNAMIC,
        synonyms=(("log.flush.interval.messages", 1),),
    ),
    Setting(
        "flush.ms", ConfigType.LONG, 9223372036854775807,
        "Longest time before an appended message is flushed to the disk.", "Topic", minimum=0, mode=Mode.DYNAMIC,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "flush.visible", ConfigType.BOOLEAN, False,
        "Whether consumers see a message only after it was flushed to the disk; acks=all is then also answered after "
        "the flush.",
        "Topic", mode=Mode.DYNAMIC, synonyms=(("log.flush.visible", 1),),
    ),
    Setting(
        "follower.replication.throttled.replicas", ConfigType.LIST, (),
        "Replicas that throttle their own fetches: `partition:broker, ...`, or `*` for all.", "Topic",
        mode=Mode.DYNAMIC, synonyms=(("follower.replication.throttled.replicas", 1),),
    ),
    Setting(
        "index.interval.bytes", ConfigType.INT, 4096, "Bytes of log between two entries of the offset index.", "Topic",
        minimum=0, mode=Mode.DYNAMIC, synonyms=(("log.index.interval.bytes", 1),),
    ),
    Setting(
        "internal.segment.bytes", ConfigType.INT, None,
        "For tests: as `segment.bytes`, which it overrides, but it may be smaller. Listed only if it is set.", "Topic",
        minimum=14, mode=Mode.DYNAMIC, nullable=True, synonyms=(("internal.segment.bytes", 1),), internal=True,
    ),
    Setting(
        "leader.replication.throttled.replicas", ConfigType.LIST, (),
        "Replicas whose fetches are throttled by their leader: `partition:broker, ...`, or `*` for all.", "Topic",
        mode=Mode.DYNAMIC, synonyms=(("leader.replication.throttled.replicas", 1),),
    ),
    Setting(
        "local.retention.bytes", ConfigType.LONG, -2,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", minimum=-2,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "local.retention.ms", ConfigType.LONG, -2,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", minimum=-2,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "max.compaction.lag.ms", ConfigType.LONG, 9223372036854775807,
        "Time after which a message is compacted regardless of the uncompacted share of its log.", "Topic", minimum=1,
        mode=Mode.DYNAMIC, synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    Setting(
        "max.decompressed.message.bytes", ConfigType.INT, 2147483639,
        "Largest record of a compressed batch, in bytes when it is decompressed. With a smaller value than the default "
        "the broker decompresses all compressed batches of producers, in a thread, and refuses those with a larger "
        "record. (Kafka checks it in compactions and look-ups by time too.)",
        "Topic", minimum=1, maximum=2147483639, mode=Mode.DYNAMIC, synonyms=(("max.decompressed.message.bytes", 1),),
    ),
    Setting(
        "max.message.bytes", ConfigType.INT, 1048588, "Largest record batch in bytes, as stored.", "Topic", minimum=0,
        mode=Mode.DYNAMIC, synonyms=(("message.max.bytes", 1),),
    ),
    Setting(
        "message.timestamp.after.max.ms", ConfigType.LONG, 3600000,
        "With CreateTime: how far a message's time stamp may lie ahead of the broker's clock.", "Topic", minimum=0,
        mode=Mode.DYNAMIC, synonyms=(("log.message.timestamp.after.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.before.max.ms", ConfigType.LONG, 9223372036854775807,
        "With CreateTime: how far a message's time stamp may lie before the broker's clock.", "Topic", minimum=0,
        mode=Mode.DYNAMIC, synonyms=(("log.message.timestamp.before.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.type", ConfigType.STRING, "CreateTime",
        "Whose time stamp a message carries: the producer's (CreateTime) or the broker's (LogAppendTime).", "Topic",
        choices=("CreateTime", "LogAppendTime"), mode=Mode.DYNAMIC, synonyms=(("log.message.timestamp.type", 1),),
    ),
    Setting(
        "min.cleanable.dirty.ratio", ConfigType.DOUBLE, 0.5,
        "Uncompacted share of a log at which it is compacted again.", "Topic", minimum=0, maximum=1, mode=Mode.DYNAMIC,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    Setting(
        "min.compaction.lag.ms", ConfigType.LONG, 0, "Shortest time that a message stays uncompacted.", "Topic",
        minimum=0, mode=Mode.DYNAMIC, synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    Setting(
        "min.insync.replicas", ConfigType.INT, 1,
        "In-sync replicas that must have a message before acks=all is answered (all of them if a partition has fewer "
        "replicas).",
        "Topic", minimum=1, mode=Mode.DYNAMIC, synonyms=(("min.insync.replicas", 1),),
    ),
    Setting(
        "placement.label", ConfigType.STRING, "",
        "The label of the brokers that may have replicas of the topic (`broker.labels`); empty for any broker. "
        "Accepted only if all replicas are on brokers that carry the label: `pylogd topics relabel` moves them and "
        "changes the label in one step. The default for a new topic is the broker's `default.placement.label`. (Only "
        "in pylogd.)",
        "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "preallocate", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: files always grow as they are written.", "Topic",
        mode=Mode.DYNAMIC, synonyms=(("log.preallocate", 1),),
    ),
    Setting(
        "remote.copy.lag.bytes", ConfigType.LONG, -1,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", minimum=-1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "remote.copy.lag.ms", ConfigType.LONG, 0,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", minimum=-1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "remote.log.copy.disable", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "remote.log.delete.on.disable", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: there is no tiered storage.", "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "remote.storage.enable", ConfigType.BOOLEAN, False, "Accepted if it is `false`: there is no tiered storage.",
        "Topic", mode=Mode.DYNAMIC,
    ),
    Setting(
        "retention.bytes", ConfigType.LONG, -1,
        "Size of a partition above which its oldest segments are deleted; -1 for no limit.", "Topic", mode=Mode.DYNAMIC,
        synonyms=(("log.retention.bytes", 1),),
    ),
    Setting(
        "retention.ms", ConfigType.LONG, 604800000, "Age at which a closed segment is deleted; -1 for never.", "Topic",
        minimum=-1, mode=Mode.DYNAMIC,
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", 60000), ("log.retention.hours", 3600000)),
    ),
    Setting(
        "segment.bytes", ConfigType.INT, 1073741824, "Size at which a segment file is closed and the next one started.",
        "Topic", minimum=1048576, mode=Mode.DYNAMIC, synonyms=(("log.segment.bytes", 1),),
    ),
    Setting(
        "segment.index.bytes", ConfigType.INT, 10485760,
        "Largest index file of a segment; a full one rolls the segment.", "Topic", minimum=4, mode=Mode.DYNAMIC,
        synonyms=(("log.index.size.max.bytes", 1),),
    ),
    Setting(
        "segment.jitter.ms", ConfigType.LONG, 0,
        "A random time up to this is subtracted from the maximum age of a segment.", "Topic", minimum=0,
        mode=Mode.DYNAMIC, synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3600000)),
    ),
    Setting(
        "segment.ms", ConfigType.LONG, 604800000,
        "Age at which a segment is closed and the next one started, even if it is not full.", "Topic", minimum=1,
        mode=Mode.DYNAMIC, synonyms=(("log.roll.ms", 1), ("log.roll.hours", 3600000)),
    ),
    Setting(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, False,
        "Whether a replica that is not in sync may become leader when no other is left.", "Topic", mode=Mode.DYNAMIC,
        synonyms=(("unclean.leader.election.enable", 1),),
    ),
)

#: Every setting of a group by name.
GROUP_SETTINGS: Final[Mapping[str, Setting]] = _by_name(
    Setting(
        "consumer.session.timeout.ms", ConfigType.INT, 45000,
        "Time without heartbeats after which a member of the newer protocol is removed from the group. It must be "
        "longer than consumer.heartbeat.interval.ms, and within group.consumer.min.session.timeout.ms and "
        "group.consumer.max.session.timeout.ms.",
        "Group", minimum=1, mode=Mode.DYNAMIC, synonyms=(("group.consumer.session.timeout.ms", 1),),
    ),
    Setting(
        "consumer.heartbeat.interval.ms", ConfigType.INT, 5000,
        "How often members of the newer protocol are told to send heartbeats. It must be within "
        "group.consumer.min.heartbeat.interval.ms and group.consumer.max.heartbeat.interval.ms. A change reaches a "
        "member with its next heartbeat.",
        "Group", minimum=1, mode=Mode.DYNAMIC, synonyms=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Setting(
        "consumer.assignment.interval.ms", ConfigType.INT, 0,
        "Shortest time between two assignments of a group; after it, the next heartbeat assigns (KIP-1263). It must be "
        "within group.consumer.min.assignment.interval.ms and group.consumer.max.assignment.interval.ms.",
        "Group", minimum=0, mode=Mode.DYNAMIC, synonyms=(("group.consumer.assignment.interval.ms", 1),),
    ),
)

#: Every setting of a subscription to clients' metrics by name.
CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = _by_name(
    Setting(
        "metrics", ConfigType.LIST, (),
        "Prefixes of the names of the metrics that clients push, such as `org.apache.kafka.producer.`; `*` for all.",
        "Subscription", mode=Mode.DYNAMIC,
    ),
    Setting(
        "interval.ms", ConfigType.INT, 300000,
        "How often clients push. A client with several subscriptions uses the shortest interval of them.",
        "Subscription", minimum=100, maximum=3600000, mode=Mode.DYNAMIC,
    ),
    Setting(
        "match", ConfigType.LIST, (),
        "Which clients push: `attribute=regular expression`, separated by commas, all of which have to match as a "
        "whole. Attributes: client_id, client_instance_id, client_software_name, client_software_version, "
        "client_source_address, client_source_port. None: all clients.",
        "Subscription", mode=Mode.DYNAMIC,
    ),
)

#: The broker settings that limit the values of a group.
BOUNDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "consumer.session.timeout.ms":
        ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        "consumer.heartbeat.interval.ms":
        ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
        "consumer.assignment.interval.ms":
        ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    }
)

#: The profiles by name.
PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "logs": Profile(
            "logs",
            "Programs log straight to the cluster, without a file in between, and must never be held up by it. "
            "Availability for writers comes first: rather than refuse writes, the cluster loses the last records of a "
            "failed broker. The volume is high, and records are read within minutes, by streaming jobs, model "
            "training, and the mirror to the offline cluster.",
            (
                Choice(
                    "default.replication.factor", 3, "Writes continue while two of the three brokers are down.",
                ),
                Choice(
                    "min.insync.replicas", 1, "One replica in sync is enough to accept a write, also with acks=all.",
                ),
                Choice(
                    "unclean.leader.election.enable", True,
                    "If no replica in sync is left, another one takes the writes. The records that it lacks are lost; "
                    "a stopped writer would lose more.",
                ),
                Choice(
                    "auto.create.topics.enable", True, "A new program can log before anybody has created its topic.",
                ),
                Choice(
                    "num.partitions", 12, "Such topics are large, and their writers and readers are many.",
                ),
                Choice(
                    "log.retention.hours", 24,
                    "Readers keep up; a day is enough to repair one. The offline cluster keeps more.",
                ),
                Choice(
                    "log.retention.check.interval.ms", 60000,
                    "At a high volume, the default's five minutes take much space.",
                ),
                Choice(
                    "socket.listen.backlog.size", 4096,
                    "All programs connect again at the same moment after a broker's restart.",
                ),
                Choice(
                    "queued.max.request.bytes", 536870912,
                    "Large batches of many writers arrive at once at the evening peak.",
                ),
                Choice(
                    "log.write.queues", "always",
                    "A disk that hangs stops the topics on it, not the whole broker, and a full queue refuses at once "
                    "instead of holding a writer up.",
                ),
                Choice(
                    "log.dir.failure.timeout.ms", 10000,
                    "Another broker takes over from a disk that hangs after ten seconds.",
                ),
                Choice(
                    "log.block.cache.bytes", 1073741824,
                    "Streaming jobs find the newest records in memory, whatever others read. Raise it to what the "
                    "machine has.",
                ),
                Choice(
                    "lagging.consumer.throttle.enable", True,
                    "A job that reads from the beginning must not slow the writers on its disks.",
                ),
                Choice(
                    "replica.fetch.max.bytes", 4194304, "Followers keep up with few large fetches.",
                ),
                Choice(
                    "replica.fetch.response.max.bytes", 33554432, "As the one above, for all partitions of a fetch.",
                ),
                Choice(
                    "leader.imbalance.check.interval.seconds", 60,
                    "A broker that is back takes its share of the writers after a minute, not five.",
                ),
            ),
        ),
        "online": Profile(
            "online",
            "Services send each other messages through the cluster. A message that was acknowledged must not be lost, "
            "and has to arrive soon. Topics are small, and are created with intent. Producers should use acks=all.",
            (
                Choice(
                    "default.replication.factor", 3, "A broker may fail while another one is being repaired.",
                ),
                Choice(
                    "min.insync.replicas", 2, "What was acknowledged with acks=all is on two machines at least.",
                ),
                Choice(
                    "unclean.leader.election.enable", False,
                    "A partition rather waits for its replicas than loses messages.",
                ),
                Choice(
                    "auto.create.topics.enable", False, "A misspelt name must not become a topic that nobody reads.",
                ),
                Choice(
                    "num.partitions", 3, "Small topics; more partitions only cost.",
                ),
                Choice(
                    "log.retention.hours", 72, "Messages are read in seconds; three days outlast a weekend's repair.",
                ),
                Choice(
                    "log.segment.bytes", 268435456,
                    "Retention works by segments, and small topics fill large ones slowly.",
                ),
                Choice(
                    "replica.lag.time.max.ms", 10000,
                    "With acks=all, every write waits for a follower that is stuck until it leaves the in-sync set.",
                ),
                Choice(
                    "sendfile.max.bytes", 524288,
                    "A reader with a backlog takes shorter turns, so small answers wait less.",
                ),
                Choice(
                    "fetch.max.bytes", 16777216, "The same, for the whole answer to one fetch.",
                ),
                Choice(
                    "log.write.queues", "always",
                    "A disk that hangs must not stop all services. A write takes a hop to a thread and back, which is "
                    "little beside the network.",
                ),
                Choice(
                    "log.dir.failure.timeout.ms", 10000,
                    "Another broker takes over from a disk that hangs after ten seconds.",
                ),
                Choice(
                    "log.block.cache.bytes", 268435456,
                    "What services are about to read stays in memory when one of them reads old messages.",
                ),
                Choice(
                    "lagging.consumer.throttle.enable", True,
                    "A service that replays days must not slow the others on its disks.",
                ),
                Choice(
                    "group.initial.rebalance.delay.ms", 500, "A service that starts gets its messages sooner.",
                ),
                Choice(
                    "offsets.topic.replication.factor", 3,
                    "The positions of the services are as durable as the messages.",
                ),
            ),
        ),
        "offline": Profile(
            "offline",
            "What the other clusters collect ends here: a mirror writes it, jobs dump it to HDFS, and less important "
            "streaming and training jobs read it. Reads are large and mostly from disk; throughput and space count, "
            "latency does not.",
            (
                Choice(
                    "default.replication.factor", 2, "The source has the records for a while, and HDFS has them soon.",
                ),
                Choice(
                    "min.insync.replicas", 1, "The mirror continues with one replica; it can repeat what was lost.",
                ),
                Choice(
                    "num.partitions", 12, "Jobs load as many partitions in parallel.",
                ),
                Choice(
                    "log.retention.hours", 240, "A dump that failed over a long holiday can be repeated.",
                ),
                Choice(
                    "log.index.interval.bytes", 65536, "Readers go from one end to the other and seldom seek.",
                ),
                Choice(
                    "fetch.max.bytes", 134217728, "A job reads as much as it asks for with one request.",
                ),
                Choice(
                    "sendfile.max.bytes", 8388608, "Fewer, longer turns read the disk more sequentially.",
                ),
                Choice(
                    "replica.fetch.max.bytes", 4194304, "Followers keep up with few large fetches.",
                ),
                Choice(
                    "replica.fetch.response.max.bytes", 33554432, "As the one above, for all partitions of a fetch.",
                ),
                Choice(
                    "log.block.cache.bytes", 0,
                    "Jobs read each record once, and late: memory serves them better as read-ahead.",
                ),
                Choice(
                    "lagging.consumer.throttle.enable", False,
                    "All readers lag here, and nobody is to be protected from them.",
                ),
                Choice(
                    "background.threads", 20, "Most reads wait for a disk, each in a thread.",
                ),
                Choice(
                    "offsets.retention.minutes", 86400, "A job that runs once a month finds its position again.",
                ),
            ),
        ),
    }
)
