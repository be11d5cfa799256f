"""The options that begin with `kafka.`: the settings of Apache Kafka's consumer and producer.

Rows of the table of options (`option_table.py`), without the prefix.
"""

from typing import Final

from suwi.spark.option_kinds import (
    Option,
    Use,
    acks,
    addresses,
    codec,
    flag,
    noted,
    one_of,
    refused,
    supported,
    whole,
)

_CONSUMER: Final = (
    supported("bootstrap.servers", "", "`host:port`, several separated by commas", parse=addresses),
    supported("client.id", "suwi-spark", "the name in the brokers' logs"),
    supported(
        "isolation.level",
        "read_uncommitted",
        "or `read_committed`",
        parse=one_of("read_uncommitted", "read_committed"),
    ),
    supported(
        "max.partition.fetch.bytes", "8388608", "the most that one fetch asks for", parse=whole(1)
    ),
    supported(
        "fetch.max.bytes", "52428800", "the same: a task reads one partition", parse=whole(1)
    ),
    supported(
        "fetch.max.wait.ms", "500", "how long a broker waits for fetch.min.bytes", parse=whole(0)
    ),
    supported(
        "fetch.min.bytes", "1", "less than this is kept back for fetch.max.wait.ms", parse=whole(0)
    ),
    supported("client.rack", "", "where a task is: brokers may name a replica that is nearer"),
    supported("check.crcs", "true", "check the checksum of every batch", parse=flag),
    supported(
        "request.timeout.ms",
        "30000",
        "a broker that says nothing for so long is left",
        parse=whole(1),
    ),
    supported(
        "default.api.timeout.ms",
        "60000",
        "how long a moved or dead leader is looked for",
        parse=whole(1),
    ),
    supported(
        "socket.connection.setup.timeout.ms", "10000", "the limit of one connection", parse=whole(1)
    ),
    supported(
        "retry.backoff.ms",
        "100",
        "the first pause after a failure; each next is double",
        parse=whole(1),
    ),
    supported("retry.backoff.max.ms", "1000", "the longest pause", parse=whole(1)),
    supported("security.protocol", "PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    supported(
        "sasl.mechanism", "", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; GSSAPI is not"
    ),
    supported("sasl.jaas.config", "", "PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule"),
    supported(
        "sasl.oauthbearer.token.endpoint.url",
        "",
        "where tokens come from: `https://…`, which gets client id and secret, or `file:///…`",
    ),
    supported(
        "sasl.oauthbearer.client.credentials.client.id",
        "",
        "who asks for a token; or clientId in sasl.jaas.config",
    ),
    supported(
        "sasl.oauthbearer.client.credentials.client.secret",
        "",
        "its secret; or clientSecret in sasl.jaas.config",
    ),
    supported("sasl.oauthbearer.scope", "", "what the token is for; or scope in sasl.jaas.config"),
    supported("ssl.truststore.location", "", "a PEM file; without one the machine's are trusted"),
    supported("ssl.truststore.certificates", "", "the same as PEM text"),
    supported("ssl.truststore.type", "PEM", "PEM; JKS and PKCS12 are refused with the way out"),
    supported("ssl.keystore.location", "", "a PEM file with key and certificate, for mTLS"),
    supported("ssl.keystore.certificate.chain", "", "the same as PEM text, together with the key"),
    supported("ssl.keystore.key", "", "the key as PEM text"),
    supported("ssl.key.password", "", "of an encrypted key"),
    supported("ssl.keystore.type", "PEM", "as ssl.truststore.type"),
    supported("ssl.endpoint.identification.algorithm", "https", "empty: names are not checked"),
    supported("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "of these two"),
    supported("ssl.cipher.suites", "", "by their standard names"),
    supported(
        "group.id",
        "",
        "the group of a pipeline that names none, and of `commit_progress`: they commit how far "
        "a query is; the source joins no group and commits nothing",
    ),
    *noted(
        """
        group.instance.id group.protocol group.remote.assignor partition.assignment.strategy
        session.timeout.ms heartbeat.interval.ms rebalance.timeout.ms max.poll.interval.ms
        auto.commit.interval.ms internal.leave.group.on.close share.acknowledgement.mode
        share.acquire.mode
        """,
        "Spark says who reads what: no consumer group is joined",
    ),
    *noted("max.poll.records", "records come in columns of about 10,000"),
    *noted(
        "allow.auto.create.topics", "reading never makes a topic; one that is missing is an error"
    ),
    *noted("exclude.internal.topics", "a pattern never matches internal topics"),
    *noted("metadata.max.age.ms", "partition.metadata.cache.ttl.ms says how old a list may be"),
    *noted(
        "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
        "brokers that are all gone are looked for at kafka.bootstrap.servers again",
    ),
    *noted(
        "internal.throw.on.fetch.stable.offset.unsupported", "no offsets of a group are fetched"
    ),
    *noted("retries", "default.api.timeout.ms says for how long"),
    *noted(
        """
        receive.buffer.bytes send.buffer.bytes connections.max.idle.ms reconnect.backoff.ms
        reconnect.backoff.max.ms socket.connection.setup.timeout.max.ms client.dns.lookup
        """,
        "sockets have the system's sizes, and a lost connection is made anew when it is needed",
    ),
    *noted(
        """
        metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
        enable.metrics.push auto.include.jmx.reporter
        """,
        "Java's metrics have no counterpart; see the query's progress",
    ),
    *noted(
        """
        ssl.protocol ssl.keymanager.algorithm ssl.trustmanager.algorithm
        ssl.secure.random.implementation
        """,
        "OpenSSL chooses",
    ),
    *noted("ssl.keystore.password ssl.truststore.password", "PEM files have none of their own"),
    *noted(
        """
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
        sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
        sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms
        sasl.oauthbearer.header.urlencode sasl.oauthbearer.scope.claim.name
        sasl.oauthbearer.sub.claim.name
        """,
        "a token is asked for with each log-in, within request.timeout.ms",
    ),
    *noted(
        "sasl.login.callback.handler.class",
        "which one is known from sasl.oauthbearer.token.endpoint.url",
    ),
    *refused(
        "auto.offset.reset", "Spark keeps the offsets: use startingOffsets, and failOnDataLoss"
    ),
    *refused(
        "key.deserializer value.deserializer", "keys and values are bytes: decode the columns"
    ),
    *refused("enable.auto.commit", "Spark keeps the offsets, in the query's checkpoint"),
    *refused("interceptor.classes", "Java classes cannot be loaded: change the columns instead"),
    *refused(
        """
        sasl.client.callback.handler.class sasl.login.class ssl.engine.factory.class
        ssl.provider security.providers config.providers sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.jwt.validator.class
        """,
        "Java classes cannot be loaded",
    ),
    *refused(
        """
        sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor sasl.kerberos.min.time.before.relogin
        """,
        "Kerberos is not supported: use SCRAM, OAUTHBEARER or mTLS",
    ),
    *refused(
        """
        sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file
        sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file
        """,
        "assertions are not signed here: use client id and secret, or a file that is renewed",
    ),
    *refused(
        """
        sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
        sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url
        sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
        """,
        "a setting of brokers, not of clients",
    ),
)

# What of the consumer's keys the producer has as well: the connection.
_SHARED: Final = tuple(
    """
    bootstrap.servers client.id security. sasl. ssl. request.timeout.ms default.api.timeout.ms
    socket.connection.setup.timeout. retry.backoff. reconnect.backoff. metadata. metric
    send.buffer.bytes receive.buffer.bytes connections.max.idle.ms client.dns.lookup
    enable.metrics.push auto.include.jmx.reporter config.providers
    """.split()
)

_PRODUCER: Final = (
    supported(
        "acks", "all", "`all`, `1`, `0`; only with all a retry is stored once", Use.WRITE, acks
    ),
    supported("compression.type", "none", "none, gzip, snappy, lz4 or zstd", Use.WRITE, codec),
    supported("batch.size", "131072", "bytes after which a batch is complete", Use.WRITE, whole(1)),
    supported("linger.ms", "0", "how long a batch waits for more", Use.WRITE, whole(0)),
    supported(
        "buffer.memory",
        "33554432",
        "bytes that may wait before the task waits",
        Use.WRITE,
        whole(1),
    ),
    supported(
        "delivery.timeout.ms",
        "120000",
        "a record that is not stored by then fails the task",
        Use.WRITE,
        whole(1),
    ),
    *noted("enable.idempotence", "it is, with acks=all", Use.WRITE),
    *noted("retries", "kafka.delivery.timeout.ms says for how long", Use.WRITE),
    *noted(
        "max.in.flight.requests.per.connection", "one batch of a partition at a time", Use.WRITE
    ),
    *noted("max.block.ms", "kafka.default.api.timeout.ms says for how long", Use.WRITE),
    *noted("max.request.size", "kafka.batch.size, or a single larger record", Use.WRITE),
    *noted("metadata.max.idle.ms", "leaders are looked up when they are needed", Use.WRITE),
    *noted(
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms",
        "rows without key and partition are spread",
        Use.WRITE,
    ),
    *noted(
        "compression.gzip.level compression.lz4.level compression.zstd.level",
        "each codec has Kafka's default level",
        Use.WRITE,
    ),
    supported(
        "transaction.timeout.ms",
        "900000",
        "with transactionalIdPrefix: after which time brokers abort what is not committed",
        Use.WRITE,
        whole(1),
    ),
    *refused(
        "key.serializer value.serializer",
        "keys and values are text or bytes: encode the columns",
        Use.WRITE,
    ),
    *refused(
        "partitioner.class", "Java classes cannot be loaded: fill the column `partition`", Use.WRITE
    ),
    *refused("partitioner.ignore.keys", "fill the column `partition` instead", Use.WRITE),
    *refused(
        "transactional.id",
        "tasks have one each: for exactly once set transactionalIdPrefix",
        Use.WRITE,
    ),
    *refused("transaction.two.phase.commit.enable", "use transactionalIdPrefix", Use.WRITE),
    *refused(
        "interceptor.classes",
        "Java classes cannot be loaded: change the columns instead",
        Use.WRITE,
    ),
)


def _shared(option: Option) -> Option:
    is_shared = option.name.startswith(_SHARED)
    return option._replace(use=option.use | Use.WRITE) if is_shared else option


KAFKA_OPTIONS: Final = (*map(_shared, _CONSUMER), *_PRODUCER)
