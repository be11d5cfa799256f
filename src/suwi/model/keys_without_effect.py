"""Apache Kafka's broker keys that are accepted and have no effect here.

Keys that protect a cluster (an authorizer, policies, quotas, callbacks) are not among them: without
their effect the broker must not start.
"""

import sys

from suwi.model.config_kinds import INT64_MAX, Key, double, int32, int64

_NO_EFFECT = "Accepted without effect: there is no such {} here."
_THREADS, _BUFFER = _NO_EFFECT.format("pool of threads"), _NO_EFFECT.format("buffer")
_DIRECTORIES = _NO_EFFECT.format("move between data directories")
_KERBEROS = _NO_EFFECT.format("mechanism")
_FACTOR = double(0, sys.float_info.max)
KEYS_WITHOUT_EFFECT = {
    declared.name: declared
    for declared in (
        Key("background.threads", int32(1), 10, _THREADS),
        Key("log.cleaner.io.buffer.load.factor", _FACTOR, 0.9, _BUFFER),
        Key("log.cleaner.io.buffer.size", int32(0), 524_288, _BUFFER),
        Key("log.cleaner.threads", int32(1), 1, _THREADS),
        Key("replica.alter.log.dirs.io.max.bytes.per.second", int64(1), INT64_MAX, _DIRECTORIES),
        Key("num.io.threads", int32(1), 8, _THREADS),
        Key("num.network.threads", int32(1), 3, _THREADS),
        Key("num.recovery.threads.per.data.dir", int32(1), 2, _THREADS),
        Key("num.replica.fetchers", int32(1), 1, _THREADS),
        Key("sasl.kerberos.min.time.before.relogin", int64(0), 60_000, _KERBEROS),
        Key("sasl.kerberos.ticket.renew.jitter", _FACTOR, 0.05, _KERBEROS),
        Key("sasl.kerberos.ticket.renew.window.factor", _FACTOR, 0.8, _KERBEROS),
    )
}
"""Dynamic keys of Kafka for what is not here. They are accepted here too, without effect."""

_IMBALANCE = Key(
    "leader.imbalance.per.broker.percentage",
    int32(0),
    10,
    "Accepted without effect: preferred leaders are elected whatever their share is.",
)
STATIC_KEYS_WITHOUT_EFFECT = {_IMBALANCE.name: _IMBALANCE}
"""As `KEYS_WITHOUT_EFFECT`, but Kafka reads them at the start only."""

# Kafka's keys that are common in server.properties files and have no effect here. Each one that is
# given is logged at start.
IGNORED_BROKER_KEYS = (KEYS_WITHOUT_EFFECT | STATIC_KEYS_WITHOUT_EFFECT).keys() | frozenset(
    """
    alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds
    auto.include.jmx.reporter broker.heartbeat.interval.ms broker.id.generation.enable
    broker.session.timeout.ms
    compression.gzip.level compression.lz4.level compression.zstd.level control.plane.listener.name
    controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms controller.listener.names
    controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
    controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
    controller.quorum.retry.backoff.ms controller.quorum.voters controller.quota.window.num
    controller.quota.window.size.seconds controller.socket.timeout.ms
    delete.records.purgatory.purge.interval.requests early.start.listeners
    fetch.purgatory.purge.interval.requests group.coordinator.new.enable
    group.coordinator.rebalance.protocols group.coordinator.threads
    initial.broker.registration.timeout.ms inter.broker.protocol.version
    kafka.metrics.polling.interval.secs kafka.metrics.reporters log.dir.failure.timeout.ms
    log.local.retention.bytes log.local.retention.ms log.max.id.map.snapshots
    log.message.downconversion.enable log.message.format.version
    metadata.log.dir metadata.log.max.record.bytes.between.snapshots
    metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.min.bytes
    metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
    metadata.max.retention.ms metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms num.replica.alter.log.dirs.threads
    offsets.commit.required.acks offsets.load.buffer.size offsets.topic.compression.codec
    password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
    password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
    process.roles producer.purgatory.purge.interval.requests queued.max.request.bytes
    queued.max.requests quota.window.num quota.window.size.seconds
    replica.socket.receive.buffer.bytes replication.quota.window.num
    replication.quota.window.size.seconds request.timeout.ms reserved.broker.max.id
    sasl.kerberos.kinit.cmd sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms server.max.startup.time.ms
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.replication.factor
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    socket.listen.backlog.size socket.receive.buffer.bytes socket.send.buffer.bytes
    ssl.allow.dn.changes ssl.allow.san.changes ssl.keymanager.algorithm ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm telemetry.max.bytes
    transaction.state.log.load.buffer.size unclean.leader.election.interval.ms
    unstable.api.versions.enable unstable.feature.versions.enable
    zookeeper.clientCnxnSocket zookeeper.max.in.flight.requests zookeeper.set.acl
    zookeeper.ssl.protocol zookeeper.sync.time.ms
    """.split()
)
