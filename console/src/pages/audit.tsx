// Who changed what, and what was refused: the newest lines of the brokers' audit logs.
import { linkTo } from "../address";
import type { Audit, AuditLine } from "../api";
import { Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { NotKnown, Shown } from "../parts/state";
import { Tabs } from "../parts/tabs";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, usePage } from "../server";
import { count, time } from "../text";
import { t } from "../words";
import { AccessTabs } from "./access";

export function AuditPage({ cluster }: { cluster: string }) {
  const { query } = place.value;
  const only = query.get("only") ?? "all";
  const loaded = usePage<Audit>(apiPath(cluster, "audit", { ...partQuery(query), only }));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={t("Audit log")}
            command={page.command}
            about={page.files.map(safe).join(" · ")}
          />
          <AccessTabs cluster={cluster} />
          <NotKnown
            what={t("Of some brokers it is not known; only Suwi's tell it.")}
            why={page.silent}
          />
          {page.off.length > 0 && <Off page={page} />}
          {page.files.length > 0 && <Lines cluster={cluster} page={page} only={only} />}
        </>
      )}
    </Shown>
  );
}

function Off({ page }: { page: Audit }) {
  return (
    <section class="card state" data-state="off">
      <h2>
        {page.files.length === 0
          ? t("The audit log is off")
          : t("Some brokers have no audit log: {nodes}", { nodes: page.off.join(", ") })}
      </h2>
      <p class="quiet">
        {t("Set audit.log.dir on every broker: changes and refusals are written there then.")}
      </p>
    </section>
  );
}

function Lines({ cluster, page, only }: { cluster: string; page: Audit; only: string }) {
  const { search } = page.part;
  const choices = [
    { value: "all", title: t("Changes and refusals") },
    { value: "refused", title: t("Only refusals") },
  ];
  return (
    <section class="card" data-audit>
      <Tabs
        label={t("Which lines")}
        tabs={choices.map(({ value, title }) => ({
          title,
          href: linkTo(cluster, "audit", "", { only: value, search }),
          isChosen: value === only,
        }))}
      />
      <List
        list={{ cluster, page: "audit", kept: { only }, part: page.part }}
        search={t("Line contains")}
        empty={t("Nothing was changed or refused yet.")}
        none={t("No line is like that, of the newest of each broker.")}
        label={t("Audit log")}
        rows={page.lines}
        rowKey={(line) =>
          `${line.node} ${line.at_ms} ${line.principal} ${line.request} ${line.on.join(" ")} ${line.why}`
        }
        wide={(line) =>
          line.lost > 0 && (
            <span class="tag warning">
              {t("{time}: broker {node} could not write {count} lines", {
                time: time(line.at_ms),
                node: line.node,
                count: count(line.lost),
              })}
            </span>
          )
        }
        columns={[
          {
            title: t("Time (UTC)"),
            cell: (line) => <span class="mono">{time(line.at_ms)}</span>,
          },
          { title: t("Outcome"), cell: (line) => <Outcome line={line} /> },
          { title: t("Principal"), cell: (line) => line.principal },
          { title: t("Host"), cell: (line) => line.host },
          { title: t("Client"), cell: (line) => line.client_id ?? "–" },
          { title: t("Request"), cell: (line) => line.request },
          { title: t("Why refused"), cell: (line) => safe(line.why ?? "–") },
          { title: t("On what"), isWide: true, cell: on },
          { title: t("Broker"), isNumber: true, cell: (line) => line.node },
        ]}
      />
    </section>
  );
}

function Outcome({ line }: { line: AuditLine }) {
  return (
    <span data-refused={line.is_refused}>
      {Object.entries(line.outcome).map(([name, times]) => {
        const isRefusal = name === "refused" || name.endsWith("authorization_failed");
        const mood = name === "ok" ? "good" : isRefusal ? "error" : "warning";
        const text = t(name.replaceAll("_", " "));
        return (
          <span key={name} class={`tag ${mood}`}>
            {times === 1 ? text : `${text} × ${count(times)}`}
          </span>
        );
      })}
    </span>
  );
}

function on(line: AuditLine) {
  const more = line.on_count - line.on.length;
  const names = line.on.map(safe).join(", ");
  return more > 0 ? `${names}, ${t("{count} more", { count: count(more) })}` : names;
}
