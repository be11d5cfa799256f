// The producers that the leader of a partition remembers.
import { linkTo } from "../address";
import type { Producers } from "../api";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { duration, time } from "../text";
import { t } from "../words";

export function ProducersPage({ cluster, name }: { cluster: string; name: string }) {
  const { query } = place.value;
  const partition = query.get("partition") ?? "0";
  const loaded = usePage<Producers>(
    apiPath(cluster, "producers", { topic: name, partition, ...partQuery(query) }),
  );
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={`${page.topic}-${page.partition}`}
            about={
              <>
                {t("Producers")} · <a href={linkTo(cluster, "topics", name)}>{t("Topic")}</a>
              </>
            }
            command={page.command}
          />
          <section class="card">
            <Rows cluster={cluster} page={page} />
          </section>
        </>
      )}
    </Shown>
  );
}

function Rows({ cluster, page }: { cluster: string; page: Producers }) {
  return (
    <List
      list={{
        cluster,
        page: "producers",
        name: page.topic,
        kept: { partition: String(page.partition) },
        part: page.part,
      }}
      search={t("Producer or transactional id contains")}
      empty={t("No idempotent or transactional producer has written here lately.")}
      none={t("No producer is like that.")}
      label={t("Producers")}
      rows={page.rows}
      rowKey={(row) => row.producer_id}
      columns={[
        { title: t("Producer"), isNumber: true, cell: (row) => row.producer_id },
        { title: t("Producer epoch"), isNumber: true, cell: (row) => row.producer_epoch },
        {
          title: t("Transactional id"),
          cell: (row) =>
            row.transactional_id === null ? (
              "–"
            ) : (
              <a href={linkTo(cluster, "transactions", row.transactional_id)}>
                {safe(row.transactional_id)}
              </a>
            ),
        },
        {
          title: t("Open transaction"),
          cell: (row) =>
            row.start_offset === null ? (
              "–"
            ) : (
              <a
                href={linkTo(cluster, "records", page.topic, {
                  from: "at",
                  at: `${page.partition}:${row.start_offset}`,
                })}
              >
                {t("from offset {offset} on", { offset: row.start_offset })}
              </a>
            ),
        },
        { title: t("Last write (UTC)"), cell: (row) => time(row.last_timestamp) },
        {
          title: t("Ago"),
          isNumber: true,
          cell: (row) =>
            row.last_timestamp < 0 ? "–" : duration(Math.max(0, page.at_ms - row.last_timestamp)),
        },
        { title: t("Last sequence"), isNumber: true, cell: (row) => row.last_sequence },
      ]}
    />
  );
}
