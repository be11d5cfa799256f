import { linkTo } from "../address";
import type { ConfigRow, PartitionDescription, PartitionEvent, Topic } from "../api";
import { RunningReassignments } from "../changes/replicas";
import { configColumn, TopicChanges } from "../changes/topic";
import { HourCharts } from "../parts/chart";
import { CopyCommand, Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { place } from "../route";
import { apiPath, usePage } from "../server";
import { count, duration, size, time } from "../text";
import { t } from "../words";

const CHANGES_FIRST = 10;

export function TopicPage({ cluster, name }: { cluster: string; name: string }) {
  const asked = { topic: name, ...partQuery(place.value.query) };
  const loaded = usePage<Topic>(apiPath(cluster, "topic", asked));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={page.topic}
            about={
              <>
                <span class="mono">{page.topic_id}</span>{" "}
                <a href={linkTo(cluster, "records", page.topic)}>{t("Show the records")}</a>
              </>
            }
            command={page.command}
          />
          <TopicChanges cluster={cluster} topic={page.topic} />
          <RunningReassignments cluster={cluster} topic={page.topic} />
          <div class="tiles">
            <Tile name="partitions" title={t("Partitions")}>
              {count(page.partition_count)}
            </Tile>
            <Tile name="replicas" title={t("Replicas")}>
              {count(page.replication_factor)}
            </Tile>
            <Tile name="offsets" title={t("Offsets")}>
              {count(page.offsets)}
            </Tile>
            <Tile name="size" title={t("Size")}>
              {size(page.size_bytes)}
            </Tile>
            <Tile
              name="missing"
              title={t("Out of sync")}
              mood={page.missing_count > 0 ? "error" : ""}
            >
              {count(page.missing_count)}
            </Tile>
          </div>
          {page.missing_count > 0 && <Missing page={page} />}
          <div class="two">
            <HourCharts
              cluster={cluster}
              query={{ topic: page.topic }}
              titles={{
                records_per_s: t("Records in per second"),
                bytes_per_s: t("Bytes in"),
              }}
              missing={{ bytes_per_s: t("They are not known: only Suwi's brokers count them.") }}
            />
          </div>
          <section class="card">
            <h2>{t("Partitions")}</h2>
            <Partitions cluster={cluster} page={page} />
          </section>
          <Changes page={page} />
          <Settings cluster={cluster} page={page} />
        </>
      )}
    </Shown>
  );
}

/** Who is not in the in-sync set, since when, and why. */
function Missing({ page }: { page: Topic }) {
  return (
    <section class="card" data-missing>
      <h2>{t("Replicas that are out of sync")}</h2>
      <Table
        label={t("Replicas that are out of sync")}
        rows={page.missing}
        rowKey={(one) => `missing-${one.partition}-${one.node}`}
        columns={[
          { title: t("Partition"), isNumber: true, cell: (one) => one.partition },
          { title: t("Replica"), cell: (one) => t("broker {node}", { node: one.node }) },
          {
            title: t("Since (UTC)"),
            cell: (one) =>
              one.since_ms === null ? (
                <span class="quiet">{t("not known")}</span>
              ) : (
                <>
                  {!one.is_exact && t("before")} {time(one.since_ms)}
                </>
              ),
          },
          {
            title: t("For"),
            isNumber: true,
            cell: (one) =>
              one.since_ms === null ? "–" : duration(Math.max(0, page.at_ms - one.since_ms)),
          },
          { title: t("Reason"), isWide: true, cell: (one) => one.reason ?? "–" },
        ]}
      />
      {page.missing_count > page.missing.length && (
        <p class="quiet small">
          {t("{count} more", { count: count(page.missing_count - page.missing.length) })}
        </p>
      )}
    </section>
  );
}

/** What happened to leaders and in-sync sets. */
function Changes({ page }: { page: Topic }) {
  return (
    <section class="card">
      <h2>{t("Changes of leaders and in-sync sets, the newest first")}</h2>
      {page.changes_from === null ? (
        <p class="quiet">{t("They are not known: only Suwi's brokers keep them.")}</p>
      ) : page.changes.length === 0 ? (
        <p class="quiet">{t("None since broker {node} started.", { node: page.changes_from })}</p>
      ) : (
        <Table
          label={t("Changes of leaders and in-sync sets, the newest first")}
          rows={page.changes}
          first={CHANGES_FIRST}
          rowKey={(change) =>
            `${change.at_ms}-${change.partition}-${change.leader_epoch}-${change.isr.join()}`
          }
          columns={[
            { title: t("Time (UTC)"), cell: (change) => time(change.at_ms) },
            { title: t("Partition"), isNumber: true, cell: (change) => change.partition },
            { title: t("What happened"), cell: (change) => <Change change={change} /> },
            {
              title: t("Leader"),
              isNumber: true,
              cell: (change) => (change.leader < 0 ? "–" : change.leader),
            },
            { title: t("Leader epoch"), isNumber: true, cell: (change) => change.leader_epoch },
            { title: t("In-sync set"), cell: (change) => change.isr.join(", ") },
          ]}
        />
      )}
    </section>
  );
}

function Change({ change }: { change: PartitionEvent }) {
  return (
    <>
      {change.election && (
        <div>
          {change.leader < 0
            ? t("No leader: {reason}", { reason: change.election })
            : t("Broker {node} leads: {reason}", { node: change.leader, reason: change.election })}
        </div>
      )}
      {Object.entries(change.left).map(([node, reason]) => (
        <div key={node}>{t("Broker {node} left: {reason}", { node, reason })}</div>
      ))}
      {change.joined.map((node) => (
        <div key={node}>{t("Broker {node} joined", { node })}</div>
      ))}
    </>
  );
}

function Partitions({ cluster, page }: { cluster: string; page: Topic }) {
  return (
    <List
      list={{ cluster, page: "topics", name: page.topic, part: page.part }}
      search={t("Number contains")}
      hasSearch={page.partition_count > page.part.rows_max}
      empty={t("No partition has such a number.")}
      none={t("No partition has such a number.")}
      label={t("Partitions")}
      rows={page.partitions}
      rowKey={(partition) => partition.partition}
      columns={[
        {
          title: t("Partition"),
          cell: (row) => (
            <a href={linkTo(cluster, "records", page.topic, { partition: row.partition })}>
              {row.partition}
            </a>
          ),
        },
        {
          title: t("Leader"),
          cell: (row) =>
            row.leader === null ? <span class="tag error">{t("none")}</span> : row.leader,
        },
        { title: t("Leader epoch"), isNumber: true, cell: (row) => row.leader_epoch },
        { title: t("Replicas"), cell: (row) => <ReplicaTags partition={row} /> },
        { title: t("First offset"), isNumber: true, cell: (row) => count(row.start_offset) },
        { title: t("End offset"), isNumber: true, cell: (row) => count(row.end_offset) },
        { title: t("Size"), isNumber: true, cell: (row) => size(row.size_bytes) },
        {
          title: t("Replication"),
          cell: (row) => (
            <a href={linkTo(cluster, "live", page.topic, { partition: row.partition })}>
              {t("Watch")}
            </a>
          ),
        },
        {
          title: t("Producers"),
          cell: (row) =>
            row.problem ?? (
              <a href={linkTo(cluster, "producers", page.topic, { partition: row.partition })}>
                {t("Show")}
              </a>
            ),
        },
      ]}
    />
  );
}

function ReplicaTags({ partition }: { partition: PartitionDescription }) {
  return (
    <span class="tags">
      {partition.replicas.map((node) => {
        const isInSync = partition.isr.includes(node);
        return (
          <span key={node} class={`tag ${isInSync ? "good" : "error"}`}>
            {node} {isInSync ? "" : t("out of sync")}
          </span>
        );
      })}
    </span>
  );
}

function Value({ config: { key, value } }: { config: ConfigRow }) {
  if (value === "") return <span class="quiet">{t("empty")}</span>;
  return (
    <>
      <code>{value ?? "–"}</code> <span class="quiet">{readable(key, Number(value))}</span>
    </>
  );
}

/** What a large number of a setting is, in larger units; nothing of those that mean no limit. */
function readable(key: string, value: number): string {
  if (!(value >= 1024 && value <= Number.MAX_SAFE_INTEGER)) return "";
  if (key.endsWith(".ms")) return duration(value);
  return key.endsWith(".bytes") ? size(value) : "";
}

function Settings({ cluster, page }: { cluster: string; page: Topic }) {
  return (
    <section class="card">
      <div class="head">
        <h2>{t("Configuration")}</h2>
        <CopyCommand command={page.configs_command} />
      </div>
      <Table
        label={t("Configuration")}
        rows={page.configs}
        rowKey={(config) => config.key}
        columns={[
          {
            title: t("Key"),
            cell: (config) => <code title={config.doc ?? undefined}>{config.key}</code>,
          },
          { title: t("Value"), cell: (config) => <Value config={config} /> },
          {
            title: t("Source"),
            cell: (config) => (
              <span class={config.source === "topic" ? "tag" : "quiet"}>{t(config.source)}</span>
            ),
          },
          ...configColumn(cluster, page.topic),
        ]}
      />
    </section>
  );
}
