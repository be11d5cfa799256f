// What clients may use per second, and how close they are to it.
import type { ClosestUsage, Quotas } from "../api";
import { quotaColumn, SetQuota } from "../changes/quotas";
import { CopyCommand, Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { NotKnown, Shown } from "../parts/state";
import { place } from "../route";
import { apiPath, usePage } from "../server";
import { count, duration, size } from "../text";
import { t } from "../words";
import { AccessTabs } from "./access";

const CLOSE = 0.8;

export function QuotasPage({ cluster }: { cluster: string }) {
  const { query } = place.value;
  const [ofQuotas, ofUsages] = [partQuery(query), partQuery(query, "usage_")];
  const loaded = usePage<Quotas>(apiPath(cluster, "quotas", { ...ofQuotas, ...ofUsages }));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head
            title={t("Quotas")}
            command={page.command}
            about={t("What clients may use per second, of each broker by itself.")}
          />
          <AccessTabs cluster={cluster} />
          <Usages cluster={cluster} page={page} kept={ofQuotas} />
          <section class="card" data-quotas>
            <div class="head">
              <h2>{t("Quotas")}</h2>
              <SetQuota cluster={cluster} keys={page.keys} />
            </div>
            <List
              list={{ cluster, page: "quotas", kept: ofUsages, part: page.part }}
              search={t("Name contains")}
              empty={t("There are no quotas. suwi quotas set limits what clients use.")}
              none={t("No quota is like that.")}
              label={t("Quotas")}
              rows={page.rows}
              rowKey={(row) => `${row.entity} ${row.key}`}
              columns={[
                { title: t("Whose"), cell: (row) => row.entity },
                { title: t("Quota"), cell: (row) => row.key },
                {
                  title: t("Limit"),
                  isNumber: true,
                  cell: (row) => amount(row.key, row.limit),
                },
                ...quotaColumn(cluster),
              ]}
            />
          </section>
        </>
      )}
    </Shown>
  );
}

function Usages(props: { cluster: string; page: Quotas; kept: Record<string, string> }) {
  const { cluster, page, kept } = props;
  return (
    <section class="card" data-usages>
      <div class="head">
        <h2>{t("How close clients are to their quotas")}</h2>
        <CopyCommand command={page.usage_command} />
      </div>
      <NotKnown
        what={t("Of some brokers it is not known; only Suwi's tell it.")}
        why={page.silent}
      />
      <List
        list={{ cluster, page: "quotas", kept, part: page.usages_part, prefix: "usage_" }}
        search={t("Client contains")}
        hasSearch={page.usages.length > 0 || page.usages_part.search !== ""}
        empty={t("No client has used something of a quota lately.")}
        none={t("No client has used something of a quota lately.")}
        label={t("How close clients are to their quotas")}
        rows={page.usages}
        rowKey={(row) => `${row.entity} ${row.key}`}
        columns={[
          { title: t("Client"), cell: (row) => row.entity },
          { title: t("Quota"), cell: (row) => row.key },
          { title: t("Limit"), isNumber: true, cell: (row) => amount(row.key, row.limit) },
          { title: t("Used of late"), isNumber: true, cell: (row) => amount(row.key, row.used) },
          { title: t("Of the limit"), cell: (row) => <Share row={row} /> },
          { title: t("On broker"), isNumber: true, cell: (row) => row.node },
          {
            title: t("Throttled for"),
            isNumber: true,
            cell: (row) =>
              row.throttle_ms > 0 ? (
                <span class="tag error">{duration(row.throttle_ms)}</span>
              ) : (
                "–"
              ),
          },
        ]}
      />
      {page.left_off > 0 && (
        <p class="quiet small">
          {t("{count} others are further away from theirs.", { count: count(page.left_off) })}
        </p>
      )}
    </section>
  );
}

function Share({ row }: { row: ClosestUsage }) {
  const share = row.used / row.limit;
  const mood = share >= 1 ? "error" : share >= CLOSE ? "warning" : "";
  const text = share < 0.01 ? "< 1 %" : `${count(Math.round(100 * share))} %`;
  return (
    <span class="share">
      <progress max={1} value={Math.min(1, share)} aria-label={`${row.entity} ${row.key}`} />
      <span class={`tag ${mood}`}>{text}</span>
    </span>
  );
}

/** What a quota counts, as people read it. */
function amount(key: string, value: number): string {
  if (key.endsWith("_byte_rate")) return `${size(Math.round(value))}/s`;
  const rounded = count(Number(value.toPrecision(3)));
  return key === "request_percentage" ? `${rounded} %` : `${rounded}/s`;
}
