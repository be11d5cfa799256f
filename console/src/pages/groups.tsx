import { linkTo } from "../address";
import type { Groups } from "../api";
import { Head } from "../parts/head";
import { partQuery, Parts, Search } from "../parts/search";
import { Empty, Shown } from "../parts/state";
import { Table } from "../parts/table";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { count } from "../text";
import { t } from "../words";

export function GroupsPage({ cluster }: { cluster: string }) {
  const loaded = usePage<Groups>(apiPath(cluster, "groups", partQuery(place.value.query)));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head title={t("Groups")} command={page.command} />
          {page.silent.map((text) => (
            <p class="card warning" key={text}>
              {t("Some groups are not known.")} {text}
            </p>
          ))}
          <section class="card">
            <Search cluster={cluster} page="groups" part={page.part} label={t("Name contains")} />
            {page.rows.length === 0 ? (
              <Empty>
                {t(page.part.search ? "No group has such a name." : "There are no groups.")}
              </Empty>
            ) : (
              <Table
                label={t("Groups")}
                rows={page.rows}
                rowKey={(row) => row.group}
                columns={[
                  {
                    title: t("Group"),
                    cell: (row) => (
                      <a href={linkTo(cluster, "groups", row.group)}>{safe(row.group)}</a>
                    ),
                  },
                  { title: t("State"), cell: (row) => <span class="tag">{row.state}</span> },
                  { title: t("Type"), cell: (row) => row.type },
                  { title: t("Topics"), cell: (row) => row.topics.join(", ") },
                  { title: t("Coordinator"), isNumber: true, cell: (row) => row.coordinator },
                  {
                    title: t("Lag"),
                    isNumber: true,
                    cell: (row) => (row.problem === null ? count(row.lag) : row.problem),
                  },
                ]}
              />
            )}
            <Parts cluster={cluster} page="groups" part={page.part} />
          </section>
        </>
      )}
    </Shown>
  );
}
