import type { Finding, Overview } from "../api";
import { BrokerTable } from "../parts/broker_table";
import { HourCharts } from "../parts/chart";
import { Ensemble } from "../parts/ensemble";
import { Head } from "../parts/head";
import { Shown } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { linkTo } from "../address";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { count, time } from "../text";
import { t } from "../words";

export function OverviewPage({ cluster }: { cluster: string }) {
  const loaded = usePage<Overview>(apiPath(cluster, "overview"));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={t("Overview")}
            about={
              <>
                <span class={`tag ${page.is_healthy ? "good" : "error"}`} data-health>
                  {t(page.is_healthy ? "healthy" : "degraded")}
                </span>{" "}
                <span class="mono">{page.cluster_id}</span>
              </>
            }
            command={page.command}
          />
          <Tiles cluster={cluster} page={page} />
          <Attention cluster={cluster} findings={page.findings} total={page.findings_count} />
          <div class="two">
            <HourCharts
              cluster={cluster}
              titles={{
                records_per_s: t("Records in per second"),
                lag: t("Lag of all groups"),
              }}
            />
          </div>
          <section class="card">
            <h2>{t("Brokers")}</h2>
            <BrokerTable cluster={cluster} brokers={page.brokers} />
          </section>
          <div class="two">
            <Behind cluster={cluster} page={page} />
            <Ensemble servers={page.ensemble} />
          </div>
          {page.events.length > 0 && (
            <section class="card">
              <h2>{t("Elections and losses of records")}</h2>
              <Table
                label={t("Elections and losses of records")}
                rows={page.events}
                rowKey={(event) => `${event.at_ms} ${event.partition} ${event.text}`}
                columns={[
                  { title: t("Time (UTC)"), cell: (event) => time(event.at_ms) },
                  { title: t("Partition"), cell: (event) => event.partition ?? "–" },
                  { title: t("What happened"), cell: (event) => event.text },
                ]}
              />
            </section>
          )}
        </>
      )}
    </Shown>
  );
}

function Tiles({ cluster, page }: { cluster: string; page: Overview }) {
  const alive = page.brokers.filter((broker) => broker.state === "alive").length;
  const bad = (value: number) => (value > 0 ? "error" : "");
  return (
    <div class="tiles">
      <Tile
        name="brokers"
        title={t("Brokers alive")}
        href={linkTo(cluster, "brokers")}
        mood={alive < page.brokers.length ? "error" : ""}
      >
        {alive}/{page.brokers.length}
      </Tile>
      <Tile
        name="controller"
        title={t("Controller")}
        mood={page.controller === null ? "error" : ""}
      >
        {page.controller === null ? t("none") : t("broker {node}", { node: page.controller })}
      </Tile>
      <Tile name="topics" title={t("Topics")} href={linkTo(cluster, "topics")}>
        {count(page.topics)}
      </Tile>
      <Tile name="partitions" title={t("Partitions")}>
        {count(page.partitions)}
      </Tile>
      <Tile name="under-replicated" title={t("Under-replicated")} mood={bad(page.under_replicated)}>
        {count(page.under_replicated)}
      </Tile>
      <Tile name="offline" title={t("Without a leader")} mood={bad(page.offline)}>
        {count(page.offline)}
      </Tile>
      <Tile name="groups" title={t("Groups")} href={linkTo(cluster, "groups")}>
        {count(page.groups)}
      </Tile>
      <Tile
        name="behind"
        title={t("Groups behind")}
        mood={page.groups_behind_count ? "warning" : ""}
      >
        {count(page.groups_behind_count)}
      </Tile>
    </div>
  );
}

function Attention(props: { cluster: string; findings: Finding[]; total: number }) {
  const { cluster, findings, total } = props;
  return (
    <section class="card" data-attention>
      <h2>{t("What needs attention")}</h2>
      {findings.length === 0 && <p class="quiet">{t("Nothing.")}</p>}
      <ul class="plain">
        {findings.map((finding) => (
          <li class="finding" key={finding.about + finding.problem}>
            <span class={`tag ${finding.level}`}>{t(finding.level)}</span>
            <strong>
              <Subject cluster={cluster} about={finding.about} />
            </strong>
            <p>{safe(finding.problem)}</p>
            <p class="quiet">{safe(finding.advice)}</p>
          </li>
        ))}
      </ul>
      {total > findings.length && (
        <p class="quiet small" data-more={total - findings.length}>
          {t("{count} more", { count: count(total - findings.length) })}
        </p>
      )}
    </section>
  );
}

/** What a finding is about: a group or a broker has a page. */
function Subject({ cluster, about }: { cluster: string; about: string }) {
  const [kind = "", name] = about.split(/ (.*)/s);
  if (name === undefined || !["group", "broker"].includes(kind)) return <>{safe(about)}</>;
  return <a href={linkTo(cluster, `${kind}s`, name)}>{safe(about)}</a>;
}

function Behind({ cluster, page }: { cluster: string; page: Overview }) {
  return (
    <section class="card">
      <h2>{t("Groups {lag} or more records behind", { lag: count(page.lag_min) })}</h2>
      {page.groups_behind.length === 0 ? (
        <p class="quiet">{t("No group is behind.")}</p>
      ) : (
        <Table
          label={t("Groups behind")}
          rows={page.groups_behind}
          rowKey={(group) => group.group}
          columns={[
            {
              title: t("Group"),
              cell: (group) => (
                <a href={linkTo(cluster, "groups", group.group)}>{safe(group.group)}</a>
              ),
            },
            { title: t("State"), cell: (group) => group.state },
            { title: t("Lag"), isNumber: true, cell: (group) => count(group.lag) },
          ]}
        />
      )}
    </section>
  );
}
