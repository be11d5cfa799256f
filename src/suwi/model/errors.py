"""Kafka's error codes as exceptions, raised where the error is detected.

A handler maps a `BrokerError` to its code once per partition; any other exception is a bug.
"""

import logging
from collections.abc import Mapping
from typing import ClassVar

from kio.schema.errors import ErrorCode

log = logging.getLogger(__name__)


class BrokerError(Exception):
    """An error with a code in Kafka's protocol. The text is sent to the client."""

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    @property
    def message(self) -> str | None:
        return str(self) or None


# A message often quotes the request, which may be long, and one request may cause many errors.
_TEXT_CHARACTERS_MAX = 500


def error_of(error: Exception) -> tuple[ErrorCode, str | None]:
    """The code and message of an error. One without a code is a bug of the broker and is logged."""
    if isinstance(error, BrokerError):
        return error.code, shortened(error.message)
    log.error("unexpected error while handling a request", exc_info=error)
    return ErrorCode.unknown_server_error, None


def shortened(message: str | None) -> str | None:
    """A message that is short enough for any response."""
    if message is not None and len(message) > _TEXT_CHARACTERS_MAX:
        return f"{message[:_TEXT_CHARACTERS_MAX]} ..."
    return message


class CorruptMessage(BrokerError):
    code = ErrorCode.corrupt_message
    offset: int | None = None
    """The offset of the first record that cannot be read, if it is known."""


class UnknownTopicOrPartition(BrokerError):
    code = ErrorCode.unknown_topic_or_partition


class UnknownTopicId(BrokerError):
    code = ErrorCode.unknown_topic_id


class OffsetOutOfRange(BrokerError):
    code = ErrorCode.offset_out_of_range


class NotLeaderOrFollower(BrokerError):
    code = ErrorCode.not_leader_or_follower


class MessageTooLarge(BrokerError):
    code = ErrorCode.message_too_large


class RecordListTooLarge(BrokerError):
    code = ErrorCode.record_list_too_large


class InvalidRecord(BrokerError):
    code = ErrorCode.invalid_record


class RejectedRecords(InvalidRecord):
    """Some records of a batch are invalid: the whole batch is rejected, and the response lists the
    invalid records (KIP-467)."""

    def __init__(self, message: str, reasons: Mapping[int, str]) -> None:
        """`reasons`: by the index of the record in its batch, from 0."""
        super().__init__(message)
        self.reasons = reasons


class InvalidTimestamp(BrokerError):
    code = ErrorCode.invalid_timestamp


class InvalidRequiredAcks(BrokerError):
    code = ErrorCode.invalid_required_acks


class UnsupportedCompressionType(BrokerError):
    code = ErrorCode.unsupported_compression_type


class UnsupportedVersion(BrokerError):
    code = ErrorCode.unsupported_version


class InvalidTopic(BrokerError):
    code = ErrorCode.invalid_topic_exception


class TopicAlreadyExists(BrokerError):
    code = ErrorCode.topic_already_exists


class InvalidPartitions(BrokerError):
    code = ErrorCode.invalid_partitions


class InvalidReplicationFactor(BrokerError):
    code = ErrorCode.invalid_replication_factor


class InvalidReplicaAssignment(BrokerError):
    code = ErrorCode.invalid_replica_assignment


class InvalidConfig(BrokerError):
    code = ErrorCode.invalid_config


class InvalidRequest(BrokerError):
    code = ErrorCode.invalid_request


class PolicyViolation(BrokerError):
    code = ErrorCode.policy_violation


class TopicDeletionDisabled(BrokerError):
    code = ErrorCode.topic_deletion_disabled


class NetworkException(BrokerError):
    code = ErrorCode.network_exception


class RequestTimedOut(BrokerError):
    code = ErrorCode.request_timed_out


class NotEnoughReplicas(BrokerError):
    code = ErrorCode.not_enough_replicas


class NotEnoughReplicasAfterAppend(BrokerError):
    code = ErrorCode.not_enough_replicas_after_append


class FencedLeaderEpoch(BrokerError):
    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(BrokerError):
    code = ErrorCode.unknown_leader_epoch


class OutOfOrderSequence(BrokerError):
    code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpoch(BrokerError):
    code = ErrorCode.invalid_producer_epoch


class UnknownProducerId(BrokerError):
    code = ErrorCode.unknown_producer_id


class InvalidTxnState(BrokerError):
    code = ErrorCode.invalid_txn_state


class TransactionAbortable(BrokerError):
    code = ErrorCode.transaction_abortable


class ClusterAuthorizationFailed(BrokerError):
    code = ErrorCode.cluster_authorization_failed


class TopicAuthorizationFailed(BrokerError):
    code = ErrorCode.topic_authorization_failed


class GroupAuthorizationFailed(BrokerError):
    code = ErrorCode.group_authorization_failed


class TransactionalIdAuthorizationFailed(BrokerError):
    code = ErrorCode.transactional_id_authorization_failed


class ThrottlingQuotaExceeded(BrokerError):
    code = ErrorCode.throttling_quota_exceeded


class SecurityDisabled(BrokerError):
    code = ErrorCode.security_disabled


class TransactionCoordinatorFenced(BrokerError):
    code = ErrorCode.transaction_coordinator_fenced


class KafkaStorageError(BrokerError):
    code = ErrorCode.kafka_storage_error


class FetchSessionIdNotFound(BrokerError):
    code = ErrorCode.fetch_session_id_not_found


class InvalidFetchSessionEpoch(BrokerError):
    code = ErrorCode.invalid_fetch_session_epoch


class CoordinatorNotAvailable(BrokerError):
    code = ErrorCode.coordinator_not_available


class CoordinatorLoadInProgress(BrokerError):
    code = ErrorCode.coordinator_load_in_progress


class NotCoordinator(BrokerError):
    code = ErrorCode.not_coordinator


class NotController(BrokerError):
    code = ErrorCode.not_controller


class LeaderNotAvailable(BrokerError):
    code = ErrorCode.leader_not_available


class OffsetNotAvailable(BrokerError):
    code = ErrorCode.offset_not_available


class UnsupportedSaslMechanism(BrokerError):
    code = ErrorCode.unsupported_sasl_mechanism


class IllegalSaslState(BrokerError):
    code = ErrorCode.illegal_sasl_state


class ResourceNotFound(BrokerError):
    code = ErrorCode.resource_not_found


class DuplicateResource(BrokerError):
    code = ErrorCode.duplicate_resource


class UnacceptableCredential(BrokerError):
    code = ErrorCode.unacceptable_credential


class StaleBrokerEpoch(BrokerError):
    code = ErrorCode.stale_broker_epoch


class BrokerIdNotRegistered(BrokerError):
    code = ErrorCode.broker_id_not_registered


class InvalidUpdateVersion(BrokerError):
    code = ErrorCode.invalid_update_version


class IneligibleReplica(BrokerError):
    code = ErrorCode.ineligible_replica


class NoReassignmentInProgress(BrokerError):
    code = ErrorCode.no_reassignment_in_progress


class ElectionNotNeeded(BrokerError):
    code = ErrorCode.election_not_needed


class PreferredLeaderNotAvailable(BrokerError):
    code = ErrorCode.preferred_leader_not_available


class EligibleLeadersNotAvailable(BrokerError):
    code = ErrorCode.eligible_leaders_not_available
