import { linkTo } from "../address";
import type { Topics } from "../api";
import { CreateTopic } from "../changes/topic";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { place } from "../route";
import { apiPath, usePage } from "../server";
import { count, size } from "../text";
import { t } from "../words";

export function TopicsPage({ cluster }: { cluster: string }) {
  const { query } = place.value;
  const kept = { internal: query.get("internal") ?? "" };
  const loaded = usePage<Topics>(apiPath(cluster, "topics", { ...partQuery(query), ...kept }));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={t("Topics")}
            about={
              page.internal_count > 0 && (
                <>
                  {t("Internal topics that are not shown: {count}", { count: page.internal_count })}
                  {" · "}
                  <a href={linkTo(cluster, "topics", "", { internal: "yes" })}>{t("Show")}</a>
                </>
              )
            }
            command={page.command}
          />
          <div class="row changes">
            <CreateTopic cluster={cluster} />
          </div>
          <section class="card">
            <List
              list={{ cluster, page: "topics", kept, part: page.part }}
              search={t("Name contains")}
              empty={t("There are no topics.")}
              none={t("No topic has such a name.")}
              label={t("Topics")}
              rows={page.rows}
              rowKey={(row) => row.topic}
              columns={[
                {
                  title: t("Topic"),
                  cell: (row) => <a href={linkTo(cluster, "topics", row.topic)}>{row.topic}</a>,
                },
                {
                  title: t("Partitions"),
                  isNumber: true,
                  cell: (row) => count(row.partition_count),
                },
                {
                  title: t("Replicas"),
                  isNumber: true,
                  cell: (row) => count(row.replication_factor),
                },
                { title: t("Offsets"), isNumber: true, cell: (row) => count(row.offsets) },
                { title: t("Size"), isNumber: true, cell: (row) => size(row.size_bytes) },
                {
                  title: t("State"),
                  cell: (row) =>
                    row.offline > 0 ? (
                      <span class="tag error">
                        {t("{count} without a leader", { count: row.offline })}
                      </span>
                    ) : row.under_replicated > 0 ? (
                      <span class="tag warning">
                        {t("{count} under-replicated", { count: row.under_replicated })}
                      </span>
                    ) : (
                      <span class="tag good">{t("in sync")}</span>
                    ),
                },
              ]}
            />
          </section>
        </>
      )}
    </Shown>
  );
}
