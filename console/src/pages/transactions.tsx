// Transactional ids: which have an open transaction, since when, and which transactions hang.
import { useSignal } from "@preact/signals";
import { linkTo } from "../address";
import type { Hanging, HangingTransaction, Transactions } from "../api";
import { AbortTransaction } from "../changes/transaction";
import { CopyCommand, Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Empty, Loading, NotKnown, Shown, Trouble } from "../parts/state";
import { Table } from "../parts/table";
import { Tile } from "../parts/tile";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, useAnswer, usePage } from "../server";
import { count, duration, time } from "../text";
import { t } from "../words";

const SILENT_MINUTES = 15;

export function TransactionsPage({ cluster }: { cluster: string }) {
  const { query } = place.value;
  const state = query.get("state") ?? "";
  const loaded = usePage<Transactions>(
    apiPath(cluster, "transactions", { ...partQuery(query), state }),
  );
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head title={t("Transactions")} command={page.command} />
          <NotKnown what={t("Some transactions are not known.")} why={page.silent} />
          <div class="tiles">
            <Tile
              name="open"
              title={t("Open")}
              href={linkTo(cluster, "transactions", "", { state: "open" })}
            >
              {count(page.open_count)}
            </Tile>
            <Tile name="ids" title={t("Transactional ids")} href={linkTo(cluster, "transactions")}>
              {count(page.ids_count)}
            </Tile>
          </div>
          <section class="card">
            <Rows cluster={cluster} page={page} state={state} />
          </section>
          <HangingCard cluster={cluster} />
        </>
      )}
    </Shown>
  );
}

function Rows(props: { cluster: string; page: Transactions; state: string }) {
  const { cluster, page, state } = props;
  const none = t("No transactional id is like that.");
  return (
    <List
      list={{ cluster, page: "transactions", kept: { state }, part: page.part }}
      search={t("Name contains")}
      empty={state ? none : t("There are no transactional ids.")}
      none={none}
      label={t("Transactions")}
      rows={page.rows}
      rowKey={(row) => row.transactional_id}
      columns={[
        {
          title: t("Transactional id"),
          cell: (row) => (
            <a href={linkTo(cluster, "transactions", row.transactional_id)}>
              {safe(row.transactional_id)}
            </a>
          ),
        },
        {
          title: t("State"),
          cell: (row) => <span class={`tag ${row.is_open ? "warning" : ""}`}>{row.state}</span>,
        },
        {
          title: t("Open since (UTC)"),
          cell: (row) => (row.started_ms === null ? "–" : time(row.started_ms)),
        },
        {
          title: t("Open for"),
          isNumber: true,
          cell: (row) =>
            row.started_ms === null ? "–" : duration(Math.max(0, page.at_ms - row.started_ms)),
        },
        {
          title: t("Ends by itself after"),
          isNumber: true,
          cell: (row) => duration(row.timeout_ms),
        },
        { title: t("Partitions"), isNumber: true, cell: (row) => count(row.partitions) },
        { title: t("Producer"), isNumber: true, cell: (row) => row.producer_id },
        { title: t("Coordinator"), isNumber: true, cell: (row) => row.coordinator },
      ]}
    />
  );
}

/** All partitions are asked for their producers: only when somebody wants it. */
function HangingCard({ cluster }: { cluster: string }) {
  const minutes = useSignal(SILENT_MINUTES);
  const { answer: shown, askFor } = useAnswer<Hanging>();
  const look = (event: SubmitEvent) => {
    event.preventDefault();
    askFor(apiPath(cluster, "hanging", { minutes: minutes.value }));
  };
  return (
    <section class="card" data-hanging={typeof shown === "object"}>
      <h2>{t("Transactions that hang")}</h2>
      <p class="quiet small">
        {t(
          "They are open in a partition and no coordinator ends them, or decided and without their markers. Readers of committed records wait for them.",
        )}
      </p>
      <form class="row" onSubmit={look}>
        <label>
          {t("Minutes without a write")}
          <input
            type="number"
            min="0"
            value={minutes.value}
            onInput={(event) => (minutes.value = Number(event.currentTarget.value))}
          />
        </label>
        <button type="submit">{t("Look for them")}</button>
        {typeof shown === "object" && "command" in shown && <CopyCommand command={shown.command} />}
      </form>
      {shown === "asked" && <Loading />}
      {typeof shown === "object" &&
        ("kind" in shown ? (
          <Trouble problem={shown} />
        ) : (
          <>
            <NotKnown what={t("Not known:")} why={shown.unread} />
            {shown.found.length === 0 ? (
              <Empty>{t("No transaction hangs.")}</Empty>
            ) : (
              <HangingRows cluster={cluster} rows={shown.found} />
            )}
          </>
        ))}
    </section>
  );
}

function HangingRows({ cluster, rows }: { cluster: string; rows: HangingTransaction[] }) {
  return (
    <Table
      label={t("Transactions that hang")}
      rows={rows}
      rowKey={(row) => `${row.topic}-${row.partition} ${row.producer_id}`}
      columns={[
        {
          title: t("Partition"),
          cell: (row) =>
            row.topic === null ? (
              "–"
            ) : (
              <a
                href={linkTo(cluster, "records", row.topic, {
                  from: "at",
                  at: `${row.partition}:${row.start_offset ?? 0}`,
                })}
              >
                {row.topic}-{row.partition}
              </a>
            ),
        },
        { title: t("First offset"), isNumber: true, cell: (row) => row.start_offset ?? "–" },
        {
          title: t("Last write (UTC)"),
          cell: (row) => (row.last_timestamp === null ? "–" : time(row.last_timestamp)),
        },
        { title: t("Producer"), cell: (row) => `${row.producer_id} · ${row.producer_epoch}` },
        { title: t("Transactional id"), cell: (row) => row.transactional_id ?? "–" },
        { title: t("State"), cell: (row) => row.state ?? "–" },
        { title: t("Reason"), cell: (row) => row.reason },
        {
          title: "",
          cell: (row) =>
            row.topic !== null &&
            row.partition !== null &&
            row.start_offset !== null && (
              <AbortTransaction
                cluster={cluster}
                topic={row.topic}
                partition={row.partition}
                startOffset={row.start_offset}
              />
            ),
        },
      ]}
    />
  );
}
