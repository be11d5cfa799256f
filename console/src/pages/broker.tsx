// One broker: what it says of itself, and what its log directories hold.
import { linkTo } from "../address";
import type { Broker, BrokerStatus } from "../api";
import { HourCharts } from "../parts/chart";
import { DirectoryState } from "../parts/directory_state";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { place } from "../route";
import { apiPath, usePage } from "../server";
import { count, duration, size, time } from "../text";
import { t } from "../words";

export function BrokerPage({ cluster, name }: { cluster: string; name: string }) {
  const asked = { node: name, ...partQuery(place.value.query) };
  const loaded = usePage<Broker>(apiPath(cluster, "broker", asked));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={t("Broker {node}", { node: page.broker.node })}
            about={<About broker={page.broker} />}
            command={page.command}
          />
          <Tiles page={page} />
          {page.broker.state === "alive" && (
            <HourCharts
              cluster={cluster}
              query={{ broker: page.broker.node }}
              titles={{ records_per_s: t("Records in per second") }}
            />
          )}
          {page.broker.problems.map((each) => (
            <p key={each.kind + each.place} class="card error small">
              {each.place}: {each.reason}. {each.advice}
            </p>
          ))}
          <section class="card">
            <h2>{t("Log directories")}</h2>
            {page.problem !== null && (
              <p class="quiet">
                {t("Not known:")} {page.problem}
              </p>
            )}
            {page.directories.length > 0 && <Directories page={page} />}
          </section>
          {page.problem === null && <Replicas cluster={cluster} name={name} page={page} />}
          {page.broker.elections.length > 0 && <Elections broker={page.broker} />}
        </>
      )}
    </Shown>
  );
}

function About({ broker }: { broker: BrokerStatus }) {
  return (
    <>
      <span class={`tag ${broker.state === "alive" ? "good" : "error"}`}>{t(broker.state)}</span>{" "}
      {broker.is_controller && <span class="tag">{t("controller")}</span>}{" "}
      <span class="mono">{broker.address}</span>{" "}
      {[broker.version && `Suwi ${broker.version}`, broker.rack, broker.store, broker.problem]
        .filter(Boolean)
        .join(" · ")}{" "}
      {broker.is_store_connected === false && <span class="tag error">{t("not connected")}</span>}
    </>
  );
}

function Tiles({ page }: { page: Broker }) {
  const { broker } = page;
  return (
    <div class="tiles">
      <Tile name="leaders" title={t("Leaders")}>
        {count(broker.leaders)}
      </Tile>
      <Tile name="replicas" title={t("Replicas")}>
        {count(broker.replicas)}
      </Tile>
      <Tile
        name="out-of-sync"
        title={t("Out of sync")}
        mood={broker.out_of_sync > 0 ? "error" : ""}
      >
        {count(broker.out_of_sync)}
      </Tile>
      <Tile name="size" title={t("Size")}>
        {page.problem === null
          ? size(page.directories.reduce((sum, each) => sum + each.size_bytes, 0))
          : "–"}
      </Tile>
      <Tile name="clock" title={t("Clock ahead of the console's")}>
        {duration(broker.clock_ahead_ms)}
      </Tile>
    </div>
  );
}

function Directories({ page }: { page: Broker }) {
  return (
    <Table
      label={t("Log directories")}
      rows={page.directories}
      rowKey={(each) => each.directory}
      columns={[
        { title: t("Log directory"), cell: (each) => <code>{each.directory}</code> },
        { title: t("State"), cell: (each) => <DirectoryState isOffline={each.is_offline} /> },
        { title: t("Replicas"), isNumber: true, cell: (each) => count(each.replicas) },
        { title: t("Size"), isNumber: true, cell: (each) => size(each.size_bytes) },
        { title: t("Free"), isNumber: true, cell: (each) => size(each.free_bytes) },
        { title: t("Total"), isNumber: true, cell: (each) => size(each.total_bytes) },
      ]}
    />
  );
}

function Replicas({ cluster, name, page }: { cluster: string; name: string; page: Broker }) {
  return (
    <section class="card">
      <h2>{t("Replicas, the largest first")}</h2>
      <List
        list={{ cluster, page: "brokers", name, part: page.part }}
        search={t("Name contains")}
        empty={t("There are none.")}
        none={t("No replica has such a name.")}
        label={t("Replicas, the largest first")}
        rows={page.replicas}
        rowKey={({ directory, replica }) =>
          `${replica.topic}-${replica.partition}${replica.is_future ? ` ${directory}` : ""}`
        }
        columns={[
          {
            title: t("Partition"),
            cell: ({ replica }) => (
              <a href={linkTo(cluster, "topics", replica.topic)}>
                {replica.topic}-{replica.partition}
              </a>
            ),
          },
          { title: t("Size"), isNumber: true, cell: ({ replica }) => size(replica.size_bytes) },
          {
            title: t("Log directory"),
            cell: ({ directory, replica }) => (
              <>
                <code>{directory}</code>{" "}
                {replica.is_future && <span class="tag">{t("is moved here")}</span>}
              </>
            ),
          },
        ]}
      />
    </section>
  );
}

function Elections({ broker }: { broker: BrokerStatus }) {
  return (
    <section class="card">
      <h2>{t("Elections that it decided, the newest first")}</h2>
      <Table
        label={t("Elections that it decided, the newest first")}
        rows={broker.elections.toReversed()}
        rowKey={(election) => `${election.at_ms} ${election.cause}`}
        columns={[
          { title: t("Time (UTC)"), cell: (election) => time(election.at_ms) },
          { title: t("Partitions"), isNumber: true, cell: (each) => count(each.partitions) },
          { title: t("Cause of the election"), cell: (election) => election.cause },
        ]}
      />
    </section>
  );
}
