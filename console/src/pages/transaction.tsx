// One transactional id, and the partitions of its open transaction.
import { linkTo } from "../address";
import type { Transaction } from "../api";
import { Head } from "../parts/head";
import { Empty, Shown } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { apiPath, usePage } from "../server";
import { duration, time } from "../text";
import { t } from "../words";

export function TransactionPage({ cluster, name }: { cluster: string; name: string }) {
  const loaded = usePage<Transaction>(apiPath(cluster, "transaction", { transaction: name }));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={page.transactional_id}
            about={
              <>
                <span class={`tag ${page.is_open ? "warning" : ""}`}>{page.state}</span>{" "}
                {page.started_ms !== null &&
                  t("open since {time} (UTC)", { time: time(page.started_ms) })}
              </>
            }
            command={page.command}
          />
          <div class="tiles">
            <Tile name="open-for" title={t("Open for")}>
              {page.started_ms === null ? "–" : duration(Math.max(0, page.at_ms - page.started_ms))}
            </Tile>
            <Tile name="timeout" title={t("Ends by itself after")}>
              {duration(page.timeout_ms)}
            </Tile>
            <Tile name="producer" title={t("Producer")}>
              {page.producer_id}
            </Tile>
            <Tile name="epoch" title={t("Producer epoch")}>
              {page.producer_epoch}
            </Tile>
            <Tile name="coordinator" title={t("Coordinator")}>
              {t("broker {node}", { node: page.coordinator })}
            </Tile>
          </div>
          <section class="card">
            <h2>{t("Partitions")}</h2>
            {page.partitions.length === 0 ? (
              <Empty>{t("No transaction is open.")}</Empty>
            ) : (
              <Partitions cluster={cluster} page={page} />
            )}
          </section>
        </>
      )}
    </Shown>
  );
}

function Partitions({ cluster, page }: { cluster: string; page: Transaction }) {
  return (
    <Table
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
        { title: t("First offset"), isNumber: true, cell: (row) => row.start_offset ?? "–" },
        {
          title: t("Records"),
          cell: (row) =>
            row.start_offset !== null && (
              <a
                href={linkTo(cluster, "records", row.topic, {
                  from: "at",
                  at: `${row.partition}:${row.start_offset}`,
                })}
              >
                {t("Show the records")}
              </a>
            ),
        },
        {
          title: t("Producers"),
          cell: (row) => (
            <a href={linkTo(cluster, "producers", row.topic, { partition: row.partition })}>
              {t("Show the producers")}
            </a>
          ),
        },
      ]}
    />
  );
}
