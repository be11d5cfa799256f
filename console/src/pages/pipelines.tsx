// What runs on Spark, as the pipelines tell it.
import type { PipelineStatus, Pipelines, QueryStatus } from "../api";
import { linkTo } from "../address";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Shown } from "../parts/state";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { count, duration, time } from "../text";
import { t } from "../words";

type Row = { status: PipelineStatus; query: QueryStatus };

export function PipelinesPage({ cluster }: { cluster: string }) {
  const loaded = usePage<Pipelines>(apiPath(cluster, "pipelines", partQuery(place.value.query)));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head title={t("Pipelines")} command={page.command} />
          <section class="card">
            <List
              list={{ cluster, page: "pipelines", part: page.part }}
              search={t("Name contains")}
              empty={t("No pipeline publishes its status here (topic {topic}).", {
                topic: page.topic,
              })}
              none={t("No pipeline has such a name.")}
              label={t("Pipelines")}
              rows={page.rows.flatMap((status) =>
                status.queries.map((query) => ({ status, query })),
              )}
              rowKey={({ status, query }: Row) => `${status.pipeline}/${query.query}`}
              columns={[
                { title: t("Query"), cell: ({ query }: Row) => query.query },
                {
                  title: t("State"),
                  cell: ({ status }: Row) => <span class="tag">{t(status.state)}</span>,
                },
                { title: t("From, to"), cell: ({ query }: Row) => query.about },
                {
                  title: t("Rows/s"),
                  isNumber: true,
                  cell: ({ query }: Row) => count(query.rows_per_s),
                },
                {
                  title: t("Lag"),
                  isNumber: true,
                  cell: ({ query }: Row) =>
                    query.group === null ? (
                      count(query.lag)
                    ) : (
                      <a href={linkTo(cluster, "groups", query.group)}>{count(query.lag)}</a>
                    ),
                },
                { title: t("Rows"), isNumber: true, cell: ({ query }: Row) => count(query.rows) },
                {
                  title: t("Batch"),
                  isNumber: true,
                  cell: ({ query }: Row) => (query.batch < 0 ? "–" : count(query.batch)),
                },
                {
                  title: t("It took"),
                  isNumber: true,
                  cell: ({ query }: Row) => (query.batch < 0 ? "–" : duration(query.batch_ms)),
                },
                {
                  title: t("Done at (UTC)"),
                  cell: ({ query }: Row) => (query.done_ms === null ? "–" : time(query.done_ms)),
                },
              ]}
            />
          </section>
          {page.rows.map(
            (status) =>
              status.error !== null && (
                <section
                  class={status.state === "running" ? "card" : "card warning"}
                  key={status.pipeline}
                >
                  <h2>{t("Last error of {name}", { name: status.pipeline })}</h2>
                  <p>
                    {time(status.error_ms ?? -1)}: {safe(status.error)}
                  </p>
                  <p class="note">
                    {t("On {host} since {time}; started again {count} times.", {
                      host: status.host,
                      time: time(status.started_ms),
                      count: status.restarts,
                    })}
                  </p>
                </section>
              ),
          )}
        </>
      )}
    </Shown>
  );
}
