import { linkTo } from "../address";
import type { Group, PartitionLag, Rebalance } from "../api";
import { GroupChanges } from "../changes/group";
import { HourCharts } from "../parts/chart";
import { CopyCommand, Head } from "../parts/head";
import { isLong, List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { count, duration, time } from "../text";
import { t } from "../words";

const NAMED_MAX = 5;
const REBALANCES_FIRST = 10;
const OF_MEMBERS = "member_";

export function GroupPage({ cluster, name }: { cluster: string; name: string }) {
  const partitions = partQuery(place.value.query);
  const members = partQuery(place.value.query, OF_MEMBERS);
  const loaded = usePage<Group>(
    apiPath(cluster, "group", { group: name, ...partitions, ...members }),
  );
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={page.group}
            about={
              <>
                <span class="tag">{page.state}</span> {page.type} {safe(page.protocol)}
              </>
            }
            command={page.command}
          />
          <GroupChanges cluster={cluster} page={page} />
          <div class="tiles">
            <Tile name="lag" title={t("Lag in records")}>
              {count(page.lag)}
            </Tile>
            <Tile name="lag-ms" title={t("Lag in time")}>
              {duration(page.lag_ms)}
            </Tile>
            <Tile name="members" title={t("Members")}>
              {count(page.members_count)}
            </Tile>
            <Tile name="coordinator" title={t("Coordinator")}>
              {t("broker {node}", { node: page.coordinator })}
            </Tile>
          </div>
          <div class="two">
            <HourCharts
              cluster={cluster}
              query={{ group: page.group }}
              titles={{
                lag: t("Lag in records"),
                lag_ms: t("Lag in time"),
              }}
            />
          </div>
          <section class="card">
            <div class="head">
              <h2>{t("Partitions")}</h2>
              <Unread cluster={cluster} page={page} />
            </div>
            <Partitions cluster={cluster} page={page} kept={members} />
          </section>
          <Members cluster={cluster} page={page} kept={partitions} />
          <Rebalances page={page} />
        </>
      )}
    </Shown>
  );
}

/** Where reading what the group has not read begins. */
function unreadFrom(row: PartitionLag): string | undefined {
  if (!row.lag || row.current_offset === null) return undefined;
  return `${row.partition}:${Math.max(row.current_offset, row.start_offset ?? 0)}`;
}

/** What the group has not read, of each topic. */
function Unread({ cluster, page }: { cluster: string; page: Group }) {
  return (
    <div class="row small">
      {page.unread.map(({ topic, at }) => (
        <a
          key={topic}
          data-unread={topic}
          href={linkTo(cluster, "records", topic, { from: "at", at })}
        >
          {t("What it has not read of {topic}", { topic })}
        </a>
      ))}
    </div>
  );
}

interface OfPage {
  cluster: string;
  page: Group;
  /** What the address says of the other list. */
  kept: Record<string, string>;
}

function Partitions({ cluster, page, kept }: OfPage) {
  return (
    <List
      list={{ cluster, page: "groups", name: page.group, kept, part: page.part }}
      search={t("Name contains")}
      hasSearch={isLong(page.part)}
      empty={t("The group has no offsets and no partitions.")}
      none={t("No partition has such a name.")}
      label={t("Partitions")}
      rows={page.partitions}
      rowKey={(row) => `${row.topic}-${row.partition}`}
      columns={[
        {
          title: t("Partition"),
          cell: (row) => (
            <a href={linkTo(cluster, "topics", row.topic)}>
              {row.topic}-{row.partition}
            </a>
          ),
        },
        { title: t("Committed"), isNumber: true, cell: (row) => count(row.current_offset) },
        { title: t("End offset"), isNumber: true, cell: (row) => count(row.end_offset) },
        {
          title: t("Lag"),
          isNumber: true,
          cell: (row) => (
            <>
              {hasLostRecords(row) && (
                <span class="tag error">{t("records were deleted before it read them")}</span>
              )}{" "}
              {count(row.lag)}
            </>
          ),
        },
        { title: t("Lag in time"), isNumber: true, cell: (row) => duration(row.lag_ms) },
        { title: t("Read by"), cell: (row) => row.client_id ?? "–" },
        {
          title: t("Not read yet"),
          cell: (row) => {
            const at = unreadFrom(row);
            if (row.problem !== null) return row.problem;
            if (!at) return "";
            return (
              <a href={linkTo(cluster, "records", row.topic, { from: "at", at })}>
                {t("Show the records")}
              </a>
            );
          },
        },
      ]}
    />
  );
}

function hasLostRecords(row: PartitionLag): boolean {
  return row.current_offset !== null && row.current_offset < (row.start_offset ?? 0);
}

function Members({ cluster, page, kept }: OfPage) {
  const part = page.members_part;
  return (
    <section class="card">
      <h2>{t("Members")}</h2>
      <List
        list={{ cluster, page: "groups", name: page.group, kept, part, prefix: OF_MEMBERS }}
        search={t("Client or host contains")}
        hasSearch={isLong(part)}
        empty={t("The group has no members.")}
        none={t("No member is like that.")}
        label={t("Members")}
        rows={page.members}
        rowKey={(member) => member.member_id}
        columns={[
          { title: t("Client"), cell: (member) => member.client_id },
          { title: t("Host"), cell: (member) => member.host },
          { title: t("Static member"), cell: (member) => member.instance_id ?? "–" },
          {
            title: t("Partitions"),
            cell: (member) => {
              const more = member.partition_count - NAMED_MAX;
              return (
                <span title={member.partitions.join(", ")}>
                  {member.partitions.slice(0, NAMED_MAX).join(", ") || "–"}
                  {more > 0 && ` … ${t("{count} more", { count: count(more) })}`}
                </span>
              );
            },
          },
          { title: t("Member"), cell: (member) => <code>{safe(member.member_id)}</code> },
        ]}
      />
    </section>
  );
}

function Rebalances({ page }: { page: Group }) {
  return (
    <section class="card">
      <div class="head">
        <h2>{t("Rebalances, the newest first")}</h2>
        <CopyCommand command={page.history_command} />
      </div>
      {page.no_history !== null && (
        <p class="quiet">
          {t("They are not known:")} {page.no_history}
        </p>
      )}
      {page.no_history === null && page.rebalances.length === 0 && (
        <p class="quiet">{t("None since its coordinator started.")}</p>
      )}
      {page.rebalances.length > 0 && (
        <Table
          label={t("Rebalances, the newest first")}
          rows={page.rebalances}
          first={REBALANCES_FIRST}
          rowKey={(each) => `${each.at_ms} ${each.trigger}`}
          columns={[
            { title: t("Time (UTC)"), cell: (each) => time(each.at_ms) },
            { title: t("Trigger"), cell: (each) => each.trigger },
            { title: t("Client"), cell: (each) => each.client_id || "–" },
            { title: t("Host"), cell: (each) => each.host || "–" },
            { title: t("Generation"), isNumber: true, cell: generations },
            { title: t("Members"), isNumber: true, cell: (each) => count(each.members) },
            { title: t("Pause"), isNumber: true, cell: pause },
            {
              title: t("Stood still"),
              isNumber: true,
              cell: (each) => duration(each.stood_still_ms),
            },
            {
              title: t("Reason"),
              cell: (each) =>
                each.to_broker === null
                  ? each.reason || "–"
                  : t("to broker {node}; no rebalance", { node: each.to_broker }),
            },
          ]}
        />
      )}
    </section>
  );
}

function generations(each: Rebalance): string {
  return each.from_generation === null
    ? "–"
    : `${each.from_generation} → ${each.to_generation ?? "…"}`;
}

function pause(each: Rebalance): string {
  if (each.to_broker !== null) return "–";
  return each.pause_ms === null ? t("goes on") : duration(each.pause_ms);
}
