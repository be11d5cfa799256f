import { linkTo } from "../address";
import type { Groups } from "../api";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { NotKnown, Shown } from "../parts/state";
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
          <NotKnown what={t("Some groups are not known.")} why={page.silent} />
          <section class="card">
            <List
              list={{ cluster, page: "groups", part: page.part }}
              search={t("Name contains")}
              empty={t("There are no groups.")}
              none={t("No group has such a name.")}
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
                { title: t("Topics"), isWide: true, cell: (row) => row.topics.join(", ") },
                { title: t("Coordinator"), isNumber: true, cell: (row) => row.coordinator },
                {
                  title: t("Lag"),
                  isNumber: true,
                  cell: (row) => (row.problem === null ? count(row.lag) : row.problem),
                },
              ]}
            />
          </section>
        </>
      )}
    </Shown>
  );
}
