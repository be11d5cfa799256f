"""Every option of `format("suwi")`: supported, accepted with a word, or refused by name.

The names are those of Spark's Kafka connector and, after `kafka.`, of Apache Kafka's consumer.
`find` looks an option up, `suggest` names the one that may be meant; `docs/spark-source.md` shows
the table, and a test compares the two.
Invariant: an option that is not here is an error, so nothing is ignored in silence.
"""

import difflib
from enum import Enum
from typing import Final, NamedTuple

KAFKA: Final = "kafka."


class Status(Enum):
    SUPPORTED = "supported"
    NOTED = "accepted"
    """It changes nothing here, and the word says why that is right."""
    REFUSED = "refused"


class Scope(Enum):
    """Where an option means something."""

    BOTH = "streaming and batch"
    STREAM = "streaming"
    BATCH = "batch"
    SINK = "writing"


class Option(NamedTuple):
    name: str
    """As it is written in documents; options are looked up without regard to case."""
    status: Status
    word: str
    """What it does, why it changes nothing, or what to do instead."""
    default: str = ""
    scope: Scope = Scope.BOTH


def _supported(name: str, default: str, word: str, scope: Scope = Scope.BOTH) -> Option:
    return Option(name, Status.SUPPORTED, word, default, scope)


def _noted(names: str, word: str, scope: Scope = Scope.BOTH) -> list[Option]:
    return [Option(name, Status.NOTED, word, "", scope) for name in names.split()]


def _refused(names: str, word: str, scope: Scope = Scope.BOTH) -> list[Option]:
    return [Option(name, Status.REFUSED, word, "", scope) for name in names.split()]


_SOURCE: Final = (
    _supported("subscribe", "", "topics, separated by commas"),
    _supported(
        "subscribePattern", "", "a regular expression of Python's; it may match any part of a name"
    ),
    _supported("assign", "", 'partitions by topic: `{"a":[0,1],"b":[2]}`'),
    _supported(
        "startingOffsets",
        "latest; batch: earliest",
        '`earliest`, `latest` (streaming only) or `{"a":{"0":23,"1":-2}}`, where -2 is earliest '
        "and -1 latest. Holds for a new query; partitions found later start at earliest",
    ),
    _supported(
        "startingOffsetsByTimestamp",
        "",
        'milliseconds since 1970 by partition: `{"a":{"0":1000}}`; goes before startingOffsets',
    ),
    _supported(
        "startingTimestamp",
        "",
        "milliseconds since 1970, for all partitions; goes before startingOffsetsByTimestamp",
    ),
    _supported(
        "startingOffsetsByTimestampStrategy",
        "error",
        "where no record is that new: `error`, or `latest` to start at the end",
    ),
    _supported("endingOffsets", "latest", "`latest` or JSON as above", Scope.BATCH),
    _supported(
        "endingOffsetsByTimestamp",
        "",
        "as above; latest where no record is that new; goes before endingOffsets",
        Scope.BATCH,
    ),
    _supported(
        "endingTimestamp", "", "as above; goes before endingOffsetsByTimestamp", Scope.BATCH
    ),
    _supported(
        "failOnDataLoss",
        "true",
        "whether records that are gone before they were read stop the query, naming topic, "
        "partition and offsets, or are skipped with a warning",
    ),
    _supported("includeHeaders", "false", "adds the column `headers`"),
    _supported(
        "maxOffsetsPerTrigger",
        "",
        "at most this many offsets in a micro-batch, shared out by what each partition has; "
        "needs PySpark 4.2",
        Scope.STREAM,
    ),
    _supported(
        "minOffsetsPerTrigger",
        "",
        "wait until this many offsets have come, at most for maxTriggerDelay; needs PySpark 4.2",
        Scope.STREAM,
    ),
    _supported(
        "maxTriggerDelay",
        "15m",
        "how long minOffsetsPerTrigger may wait: `90s`, `15m`, `1h`, plain numbers are "
        "milliseconds; needs PySpark 4.2",
        Scope.STREAM,
    ),
    _supported("minPartitions", "", "split large partitions until there are about so many tasks"),
    _supported("maxRecordsPerPartition", "", "split partitions into tasks of at most so many"),
    _supported(
        "kafkaConsumer.pollTimeoutMs",
        "120000",
        "how long a task waits for records that must be there",
    ),
    _supported("fetchOffset.numRetries", "3", "attempts of a question about offsets"),
    _supported("fetchOffset.retryIntervalMs", "1000", "the pause between them"),
    _supported(
        "partition.metadata.cache.ttl.ms",
        "1000",
        "how long the list of partitions is believed; -1: it is asked for before every batch",
    ),
    _supported(
        "pushDownFilters",
        "false",
        "read no more than filters on topic, partition, offset and timestamp ask for; needs "
        "spark.sql.python.filterPushdown.enabled, and a DataFrame that is used once (see Filters)",
        Scope.BATCH,
    ),
    *_noted(
        "groupIdPrefix",
        "no consumer group is joined, so none needs a name; see kafka.group.id for progress",
    ),
    _supported("topic", "", "the topic to write to", Scope.SINK),
    *_refused("path", "topics are not files: use load() without a path, and `subscribe`"),
)

_KAFKA: Final = (
    _supported("bootstrap.servers", "", "`host:port`, several separated by commas"),
    _supported("client.id", "suwi-spark", "the name in the brokers' logs"),
    _supported("isolation.level", "read_uncommitted", "or `read_committed`"),
    _supported("max.partition.fetch.bytes", "8388608", "the most that one fetch asks for"),
    _supported("fetch.max.bytes", "52428800", "the same: a task reads one partition"),
    _supported("fetch.max.wait.ms", "500", "how long a broker waits for fetch.min.bytes"),
    _supported("fetch.min.bytes", "1", "less than this is kept back for fetch.max.wait.ms"),
    _supported("client.rack", "", "where a task is: brokers may name a replica that is nearer"),
    _supported("check.crcs", "true", "check the checksum of every batch"),
    _supported("request.timeout.ms", "30000", "a broker that says nothing for so long is left"),
    _supported("default.api.timeout.ms", "60000", "how long a moved or dead leader is looked for"),
    _supported("socket.connection.setup.timeout.ms", "10000", "the limit of one connection"),
    _supported("retry.backoff.ms", "100", "the first pause after a failure; each next is double"),
    _supported("retry.backoff.max.ms", "1000", "the longest pause"),
    _supported("security.protocol", "PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    _supported(
        "sasl.mechanism", "", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; GSSAPI is not"
    ),
    _supported(
        "sasl.jaas.config", "", "PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule"
    ),
    _supported(
        "sasl.oauthbearer.token.endpoint.url",
        "",
        "where tokens come from: `https://…`, which gets client id and secret, or `file:///…`",
    ),
    _supported(
        "sasl.oauthbearer.client.credentials.client.id",
        "",
        "who asks for a token; or clientId in sasl.jaas.config",
    ),
    _supported(
        "sasl.oauthbearer.client.credentials.client.secret",
        "",
        "its secret; or clientSecret in sasl.jaas.config",
    ),
    _supported("sasl.oauthbearer.scope", "", "what the token is for; or scope in sasl.jaas.config"),
    _supported("ssl.truststore.location", "", "a PEM file; without one the machine's are trusted"),
    _supported("ssl.truststore.certificates", "", "the same as PEM text"),
    _supported("ssl.truststore.type", "PEM", "PEM; JKS and PKCS12 are refused with the way out"),
    _supported("ssl.keystore.location", "", "a PEM file with key and certificate, for mTLS"),
    _supported("ssl.keystore.certificate.chain", "", "the same as PEM text, together with the key"),
    _supported("ssl.keystore.key", "", "the key as PEM text"),
    _supported("ssl.key.password", "", "of an encrypted key"),
    _supported("ssl.keystore.type", "PEM", "as ssl.truststore.type"),
    _supported("ssl.endpoint.identification.algorithm", "https", "empty: names are not checked"),
    _supported("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "of these two"),
    _supported("ssl.cipher.suites", "", "by their standard names"),
    _supported(
        "group.id",
        "",
        "the group of a pipeline that names none, and of `commit_progress`: they commit how far "
        "a query is; the source joins no group and commits nothing",
    ),
    *_noted(
        """
        group.instance.id group.protocol group.remote.assignor partition.assignment.strategy
        session.timeout.ms heartbeat.interval.ms rebalance.timeout.ms max.poll.interval.ms
        auto.commit.interval.ms internal.leave.group.on.close share.acknowledgement.mode
        share.acquire.mode
        """,
        "Spark says who reads what: no consumer group is joined",
    ),
    *_noted("max.poll.records", "records come in columns of about 10,000"),
    *_noted(
        "allow.auto.create.topics", "reading never makes a topic; one that is missing is an error"
    ),
    *_noted("exclude.internal.topics", "a pattern never matches internal topics"),
    *_noted("metadata.max.age.ms", "partition.metadata.cache.ttl.ms says how old a list may be"),
    *_noted(
        "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
        "brokers that are all gone are looked for at kafka.bootstrap.servers again",
    ),
    *_noted(
        "internal.throw.on.fetch.stable.offset.unsupported", "no offsets of a group are fetched"
    ),
    *_noted("retries", "default.api.timeout.ms says for how long"),
    *_noted(
        """
        receive.buffer.bytes send.buffer.bytes connections.max.idle.ms reconnect.backoff.ms
        reconnect.backoff.max.ms socket.connection.setup.timeout.max.ms client.dns.lookup
        """,
        "sockets have the system's sizes, and a lost connection is made anew when it is needed",
    ),
    *_noted(
        """
        metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
        enable.metrics.push auto.include.jmx.reporter
        """,
        "Java's metrics have no counterpart; see the query's progress",
    ),
    *_noted(
        """
        ssl.protocol ssl.keymanager.algorithm ssl.trustmanager.algorithm
        ssl.secure.random.implementation
        """,
        "OpenSSL chooses",
    ),
    *_noted("ssl.keystore.password ssl.truststore.password", "PEM files have none of their own"),
    *_noted(
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
    *_noted(
        "sasl.login.callback.handler.class",
        "which one is known from sasl.oauthbearer.token.endpoint.url",
    ),
    *_refused(
        "auto.offset.reset", "Spark keeps the offsets: use startingOffsets, and failOnDataLoss"
    ),
    *_refused(
        "key.deserializer value.deserializer", "keys and values are bytes: decode the columns"
    ),
    *_refused("enable.auto.commit", "Spark keeps the offsets, in the query's checkpoint"),
    *_refused("interceptor.classes", "Java classes cannot be loaded: change the columns instead"),
    *_refused(
        """
        sasl.client.callback.handler.class sasl.login.class ssl.engine.factory.class
        ssl.provider security.providers config.providers sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.jwt.validator.class
        """,
        "Java classes cannot be loaded",
    ),
    *_refused(
        """
        sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor sasl.kerberos.min.time.before.relogin
        """,
        "Kerberos is not supported: use SCRAM, OAUTHBEARER or mTLS",
    ),
    *_refused(
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
    *_refused(
        """
        sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
        sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url
        sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
        """,
        "a setting of brokers, not of clients",
    ),
)

TABLE: Final = (*_SOURCE, *(option._replace(name=KAFKA + option.name) for option in _KAFKA))
_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


def find(name: str) -> Option | None:
    return _BY_NAME.get(name.lower())


def suggest(name: str) -> str | None:
    """The option that may be meant by a name that is none."""
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.6)
    return _BY_NAME[close[0]].name if close else None
