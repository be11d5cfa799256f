// All brokers, and the log directories of each.
import { linkTo } from "../address";
import type { Brokers } from "../api";
import { DrainBroker, ElectLeaders, RunningReassignments } from "../changes/replicas";
import { BrokerTable } from "../parts/broker_table";
import { DirectoryState } from "../parts/directory_state";
import { Ensemble } from "../parts/ensemble";
import { Head } from "../parts/head";
import { NotKnown, Shown } from "../parts/state";
import { Table } from "../parts/table";
import { apiPath, usePage } from "../server";
import { size } from "../text";
import { t } from "../words";

export function BrokersPage({ cluster }: { cluster: string }) {
  const loaded = usePage<Brokers>(apiPath(cluster, "brokers"));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head title={t("Brokers")} command={page.command} />
          <div class="row changes">
            <ElectLeaders cluster={cluster} topic={null} />
            <DrainBroker cluster={cluster} nodes={page.brokers.map((broker) => broker.node)} />
          </div>
          <RunningReassignments cluster={cluster} />
          {page.brokers.flatMap((broker) =>
            broker.problems.map((each) => (
              <p key={`${broker.node} ${each.kind} ${each.place}`} class="card error">
                {t("broker {node}", { node: broker.node })}: {each.place}: {each.reason}.{" "}
                {each.advice}
              </p>
            )),
          )}
          <NotKnown what={t("Not known:")} why={page.unknown} />
          <section class="card">
            <BrokerTable cluster={cluster} brokers={page.brokers} />
          </section>
          <Directories cluster={cluster} page={page} />
          <Ensemble servers={page.ensemble} />
        </>
      )}
    </Shown>
  );
}

function Directories({ cluster, page }: { cluster: string; page: Brokers }) {
  const rows = page.brokers.flatMap(({ node, disks }) => disks.map((disk) => ({ node, disk })));
  return (
    <section class="card">
      <h2>{t("Log directories")}</h2>
      <Table
        label={t("Log directories")}
        rows={rows}
        rowKey={({ node, disk }) => `${node} ${disk.directory}`}
        columns={[
          {
            title: t("Broker"),
            cell: ({ node }) => <a href={linkTo(cluster, "brokers", String(node))}>{node}</a>,
          },
          { title: t("Log directory"), cell: ({ disk }) => <code>{disk.directory}</code> },
          {
            title: t("State"),
            cell: ({ disk }) => <DirectoryState isOffline={disk.is_offline} />,
          },
          { title: t("Free"), isNumber: true, cell: ({ disk }) => size(disk.free_bytes) },
          { title: t("Total"), isNumber: true, cell: ({ disk }) => size(disk.total_bytes) },
        ]}
      />
    </section>
  );
}
