// The JSON of the console's server. Written by tools/console_types.py: do not edit.

export interface AccessRules {
  part: Part;
  rows: AclRow[];
  is_on: boolean;
  settings: AccessSettings | null;
  users_part: Part;
  users: UserRow[];
  users_problem: string | null;
  operations: string[];
  command: string;
  users_command: string;
}

export interface AccessSettings {
  super_users: string[];
  allows_without_rules: boolean;
  is_known: boolean;
}

export interface AclChange {
  resource: string;
  principal: string;
  operations: string;
  host: string;
  is_denial: boolean;
  is_literal: boolean;
}

export interface AclCheck {
  is_allowed: boolean;
  reason: string;
  command: string;
}

export interface AclRow {
  permission: string;
  principal: string;
  operation: string;
  resource: string;
  host: string;
  is_literal: boolean;
}

export interface Audit {
  part: Part;
  lines: AuditLine[];
  files: string[];
  off: number[];
  silent: string[];
  command: string;
}

export interface AuditLine {
  at_ms: number;
  node: number;
  principal: string;
  host: string;
  client_id: string | null;
  request: string;
  why: string | null;
  on: string[];
  on_count: number;
  outcome: Record<string, number>;
  is_refused: boolean;
  lost: number;
}

export interface Broker {
  broker: BrokerStatus;
  directories: DirectoryRow[];
  part: Part;
  replicas: ReplicaRow[];
  problem: string | null;
  command: string;
}

export interface BrokerDrain {
  broker: number;
}

export interface BrokerProblem {
  kind: string;
  place: string;
  reason: string;
  advice: string;
  since_ms: number;
}

export interface BrokerStatus {
  node: number;
  address: string | null;
  rack: string | null;
  state: string;
  is_controller: boolean;
  leaders: number;
  replicas: number;
  out_of_sync: number;
  version: string | null;
  store: string | null;
  is_store_connected: boolean | null;
  clock_ahead_ms: number | null;
  disks: DiskStatus[];
  elections: ElectionStatus[];
  problem: string | null;
  problems: BrokerProblem[];
  problems_count: number;
  access: Record<string, string> | null;
}

export interface Brokers {
  brokers: BrokerStatus[];
  ensemble: ServerStatus[];
  unknown: string[];
  command: string;
}

export interface Changes {
  "abort-transaction": OpenTransactionStart;
  "add-acl": AclChange;
  "add-partitions": MorePartitions;
  "cancel-reassignment": OldReassignment;
  "create-topic": NewTopic;
  "delete-group": OldGroup;
  "delete-offsets": OldOffsets;
  "delete-records": OldRecords;
  "delete-topic": OldTopic;
  "drain-broker": BrokerDrain;
  "elect-leaders": PreferredLeaders;
  "move-replicas": ReplicaMove;
  "remove-acl": AclChange;
  "remove-quota": OldQuota;
  "reset-group": GroupReset;
  "send-record": SentRecord;
  "set-configs": TopicConfigs;
  "set-quota": NewQuota;
}

export interface ClosestUsage {
  entity: string;
  key: string;
  limit: number;
  used: number;
  node: number;
  throttle_ms: number;
}

export interface ConfigRow {
  key: string;
  value: string | null;
  source: string;
  doc: string | null;
}

export interface Console {
  version: string;
  clusters: string[];
  user: string | null;
  allows_changes: boolean;
  faults: Record<string, string[]>;
}

export interface DirectoryReplica {
  topic: string;
  partition: number;
  size_bytes: number;
  offset_lag: number;
  is_future: boolean;
}

export interface DirectoryRow {
  directory: string;
  is_offline: boolean;
  total_bytes: number | null;
  free_bytes: number | null;
  replicas: number;
  size_bytes: number;
}

export interface DiskStatus {
  directory: string;
  is_offline: boolean;
  total_bytes: number | null;
  free_bytes: number | null;
}

export interface Done {
  text: string;
}

export interface EditedBytes {
  form: string;
  text: string;
}

export interface EditedHeader {
  name: EditedBytes;
  value: EditedBytes;
}

export interface EditedRecord {
  key: EditedBytes;
  value: EditedBytes;
  headers: EditedHeader[];
  partition: number | null;
}

export interface ElectionStatus {
  at_ms: number;
  cause: string;
  partitions: number;
}

export interface Event {
  at_ms: number;
  kind: string;
  partition: string | null;
  text: string;
}

export interface ExplainedGap {
  parts: GapPart[];
  next: number;
  command: string;
}

export interface Faults {
  cut: OfLink;
  "fill-disk": OfBroker;
  "free-disk": OfBroker;
  heal: OfLinks;
  hold: OfLinks;
  isolate: OfBroker;
  kill: OfBroker;
  pause: OfBroker;
  "power-loss": OfBroker;
  restart: OfBroker;
  resume: OfBroker;
  slow: OfBroker;
}

export interface Finding {
  level: string;
  about: string;
  problem: string;
  advice: string;
}

export interface Gap {
  partition: number;
  first: number;
  end: number;
}

export interface GapPart {
  first: number;
  last: number;
  what: string;
  explanation: string;
  transactional_id: string | null;
}

export interface Group {
  group: string;
  state: string;
  type: string;
  protocol: string;
  coordinator: number;
  members_count: number;
  members_part: Part;
  members: MemberRow[];
  part: Part;
  partitions: PartitionLag[];
  topics: string[];
  unread: Unread[];
  lag: number | null;
  lag_ms: number | null;
  at_ms: number;
  rebalances: Rebalance[];
  no_history: string | null;
  command: string;
  history_command: string;
}

export interface GroupReset {
  group: string;
  topic: string | null;
  partition: number | null;
  to: string;
  value: string;
}

export interface GroupRow {
  group: string;
  state: string;
  type: string;
  coordinator: number;
  topics: string[];
  lag: number | null;
  problem: string | null;
}

export interface GroupStatus {
  group: string;
  state: string;
  lag: number;
}

export interface Groups {
  part: Part;
  rows: GroupRow[];
  silent: string[];
  command: string;
}

export interface Hanging {
  found: HangingTransaction[];
  unread: string[];
  minutes: number;
  command: string;
}

export interface HangingTransaction {
  topic: string | null;
  partition: number | null;
  start_offset: number | null;
  producer_id: number;
  producer_epoch: number;
  coordinator_epoch: number | null;
  last_timestamp: number | null;
  transactional_id: string | null;
  state: string | null;
  reason: string;
}

export interface LiveBegin {
  head: Record<string, unknown>;
  words: Record<string, string>;
  partition: string;
  command: string;
}

export interface LiveEvent {
  fields: Record<string, unknown>;
  text: string;
}

export interface LiveStep {
  begin: LiveBegin | null;
  events: LiveEvent[];
  is_complete: boolean;
  waiting: WaitingProducer[];
}

export interface MemberRow {
  member_id: string;
  instance_id: string | null;
  client_id: string;
  host: string;
  partitions: string[];
  partition_count: number;
}

export interface MissingMember {
  partition: number;
  node: number;
  since_ms: number | null;
  is_exact: boolean;
  reason: string | null;
}

export interface MorePartitions {
  topic: string;
  partitions: number;
}

export interface NewQuota {
  entity: Record<string, string>;
  key: string;
  value: string;
}

export interface NewTopic {
  topic: string;
  partitions: number | null;
  replication_factor: number | null;
  configs: Record<string, string>;
}

export interface OfBroker {
  broker: number;
}

export interface OfLink {
  broker: number;
  other: number;
  one_way: boolean;
}

export interface OfLinks {
  links: string;
}

export interface OldGroup {
  group: string;
}

export interface OldOffsets {
  group: string;
  topic: string;
}

export interface OldQuota {
  entity: Record<string, string>;
  key: string;
}

export interface OldReassignment {
  topic: string;
  partition: number;
}

export interface OldRecords {
  topic: string;
  partition: number;
  before: number | null;
}

export interface OldTopic {
  topic: string;
}

export interface OneRecord {
  record: ShownRecord | null;
  what: string;
  explanation: string;
  producer_id: number | null;
  producer_epoch: number | null;
  transaction: string | null;
  transactional_id: string | null;
  command: string;
}

export interface OpenTransactionStart {
  topic: string;
  partition: number;
  start_offset: number;
}

export interface Order {
  values: Record<string, unknown>;
  is_preview: boolean;
  confirm: string;
  seen: string;
}

export interface Overview {
  cluster_id: string | null;
  is_healthy: boolean;
  controller: number | null;
  topics: number;
  partitions: number;
  under_replicated: number;
  offline: number;
  groups: number;
  lag_min: number;
  groups_behind_count: number;
  groups_behind: GroupStatus[];
  brokers: BrokerStatus[];
  ensemble: ServerStatus[];
  findings: Finding[];
  findings_count: number;
  events: Event[];
  unknown: string[];
  command: string;
}

export interface Part {
  total: number;
  first: number;
  rows_max: number;
  search: string;
}

export interface PartitionDescription {
  partition: number;
  leader: number | null;
  leader_epoch: number;
  replicas: number[];
  isr: number[];
  offline_replicas: number[];
  start_offset: number | null;
  end_offset: number | null;
  size_bytes: number | null;
  problem: string | null;
}

export interface PartitionEvent {
  at_ms: number;
  topic: string;
  partition: number;
  leader: number;
  leader_epoch: number;
  isr: number[];
  left: Record<string, string>;
  joined: number[];
  election: string;
}

export interface PartitionLag {
  topic: string;
  partition: number;
  current_offset: number | null;
  start_offset: number | null;
  end_offset: number | null;
  lag: number | null;
  lag_ms: number | null;
  member_id: string | null;
  client_id: string | null;
  host: string | null;
  instance_id: string | null;
  problem: string | null;
}

export interface PartitionRange {
  partition: number;
  start: number;
  first: number;
  next: number;
  end: number;
}

export interface PipelineStatus {
  pipeline: string;
  state: string;
  host: string;
  started_ms: number;
  published_ms: number;
  restarts: number;
  error: string | null;
  error_ms: number | null;
  queries: QueryStatus[];
}

export interface Pipelines {
  part: Part;
  rows: PipelineStatus[];
  topic: string;
  command: string;
}

export interface PlanRow {
  what: string;
  before: string;
  after: string;
}

export interface PreferredLeaders {
  topic: string | null;
}

export interface Preview {
  command: string;
  rows: PlanRow[];
  rows_count: number;
  notes: string[];
  confirm: string;
  seen: string;
}

export interface Problem {
  kind: string;
  text: string;
}

export interface ProducerDescription {
  producer_id: number;
  producer_epoch: number;
  coordinator_epoch: number;
  last_sequence: number;
  last_timestamp: number;
  start_offset: number | null;
  transactional_id: string | null;
}

export interface Producers {
  topic: string;
  partition: number;
  part: Part;
  rows: ProducerDescription[];
  at_ms: number;
  command: string;
}

export interface QueryStatus {
  query: string;
  about: string;
  group: string | null;
  batch: number;
  batch_ms: number;
  rows: number;
  rows_per_s: number;
  lag: number | null;
  done_ms: number | null;
}

export interface QuotaRow {
  entity: string;
  names: Record<string, string>;
  key: string;
  limit: number;
}

export interface Quotas {
  part: Part;
  rows: QuotaRow[];
  usages_part: Part;
  usages: ClosestUsage[];
  left_off: number;
  silent: string[];
  keys: string[];
  command: string;
  usage_command: string;
}

export interface ReassignmentRow {
  topic: string;
  partition: number;
  adding: number[];
  removing: number[];
  copied_bytes: number;
  size_bytes: number;
}

export interface Reassignments {
  rows: ReassignmentRow[];
}

export interface Rebalance {
  at_ms: number;
  trigger: string;
  to_broker: number | null;
  reason: string | null;
  client_id: string | null;
  host: string | null;
  from_generation: number | null;
  to_generation: number | null;
  members: number | null;
  pause_ms: number | null;
  stood_still_ms: number | null;
}

export interface Records {
  topic: string;
  records: ShownRecord[];
  gaps: Gap[];
  ranges: PartitionRange[];
  rest: number | null;
  partition_count: number;
  is_cut: boolean;
  command: string;
}

export interface Refusal {
  kind: string;
  text: string;
  field: string;
}

export interface ReplicaMove {
  topic: string;
  partition: number;
  replicas: number[];
}

export interface ReplicaRow {
  directory: string;
  replica: DirectoryReplica;
}

export interface SearchEvent {
  matches: ShownRecord[];
  searched: number;
  ranges: PartitionRange[];
  rest: number | null;
  is_done: boolean;
  command: string;
}

export interface SentRecord {
  topic: string;
  record: EditedRecord;
}

export interface Series {
  times_ms: number[];
  records_per_s: (number | null)[];
  lag: (number | null)[];
  bytes_per_s: (number | null)[];
  lag_ms: (number | null)[];
  is_incomplete: boolean;
}

export interface ServerStatus {
  address: string;
  state: string;
  version: string | null;
}

export interface ShownBytes {
  form: string;
  text: string;
  size_bytes: number;
  is_cut: boolean;
  schema: string;
  problem: string;
}

export interface ShownHeader {
  name: string;
  value: ShownBytes;
}

export interface ShownRecord {
  partition: number;
  offset: number;
  timestamp: number;
  key: ShownBytes;
  value: ShownBytes;
  headers: ShownHeader[];
  headers_count: number;
}

export interface TailEvent {
  records: ShownRecord[];
  skipped: number;
  command: string;
}

export interface Topic {
  topic: string;
  topic_id: string | null;
  replication_factor: number;
  partition_count: number;
  offsets: number | null;
  size_bytes: number | null;
  at_ms: number;
  part: Part;
  partitions: PartitionDescription[];
  missing: MissingMember[];
  missing_count: number;
  changes: PartitionEvent[];
  changes_from: number | null;
  configs: ConfigRow[];
  command: string;
  configs_command: string;
}

export interface TopicConfigs {
  topic: string;
  configs: Record<string, string | null>;
}

export interface TopicRow {
  topic: string;
  partition_count: number;
  replication_factor: number;
  under_replicated: number;
  offline: number;
  offsets: number | null;
  size_bytes: number | null;
}

export interface Topics {
  part: Part;
  rows: TopicRow[];
  internal_count: number;
  command: string;
}

export interface Transaction {
  transactional_id: string;
  state: string;
  is_open: boolean;
  coordinator: number;
  producer_id: number;
  producer_epoch: number;
  timeout_ms: number;
  started_ms: number | null;
  partitions: TransactionPartition[];
  at_ms: number;
  command: string;
}

export interface TransactionPartition {
  topic: string;
  partition: number;
  start_offset: number | null;
}

export interface TransactionRow {
  transactional_id: string;
  state: string;
  is_open: boolean;
  producer_id: number;
  coordinator: number;
  started_ms: number | null;
  timeout_ms: number | null;
  partitions: number | null;
}

export interface Transactions {
  part: Part;
  rows: TransactionRow[];
  open_count: number;
  ids_count: number;
  silent: string[];
  at_ms: number;
  command: string;
}

export interface Unread {
  topic: string;
  at: string;
}

export interface UserRow {
  user: string;
  mechanisms: string[];
}

export interface WaitingProducer {
  client: string;
  sends: number;
  waited_ms: number;
  left_ms: number;
}
