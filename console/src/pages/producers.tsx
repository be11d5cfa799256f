// The producers that the leader of a partition remembers.
import { linkTo } from "../address";
import type { Producers } from "../api";
import { Head } from "../parts/head";
import { partQuery, Parts, Search } from "../parts/search";
import { Empty, Shown } from "../parts/state";
import { Table } from "../parts/table";
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
            <Search
              cluster={cluster}
              page="producers"
              name={name}
              kept={{ partition }}
              part={page.part}
              label={t("Producer or transactional id contains")}
            />
            {page.rows.length === 0 ? (
              <Empty>
                {t(
                  page.part.search
                    ? "No producer is like that."
                    : "No idempotent or transactional producer has written here lately.",
                )}
              </Empty>
            ) : (
              <Rows cluster={cluster} page={page} />
            )}
            <Parts
              cluster={cluster}
              page="producers"
              name={name}
              kept={{ partition }}
              part={page.part}
            />
          </section>
        </>
      )}
    </Shown>
  );
}

function Rows({ cluster, page }: { cluster: string; page: Producers }) {
  return (
    <Table
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
