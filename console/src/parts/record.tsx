// One record. Its bytes reach the page as text nodes only: a record is hostile input.
import { linkTo } from "../address";
import type { OneRecord, ShownBytes } from "../api";
import { SendRecord } from "../changes/record";
import { indented } from "../json";
import { safe } from "../safe";
import { apiPath, useOnce } from "../server";
import { count, size, time } from "../text";
import { t } from "../words";
import { CopyCommand } from "./head";
import { Loading, Trouble } from "./state";

const OUTCOMES: Record<string, string> = { committed: "good", aborted: "error", open: "warning" };
const STRUCTURED = ["json", "avro", "protobuf"];

export function Preview({ bytes, isShort }: { bytes: ShownBytes; isShort?: boolean }) {
  if (bytes.form === "null") return <span class="quiet">null</span>;
  const about = [bytes.form, bytes.schema, size(bytes.size_bytes), bytes.problem];
  return (
    <div
      class={`preview mono ${isShort ? "short" : ""} ${bytes.form === "hex" ? "quiet" : ""}`}
      title={about.filter(Boolean).join(", ")}
    >
      {bytes.text}
    </div>
  );
}

/** `place` is PARTITION:OFFSET, as in the address of the page. */
export function OneRecordCard(props: {
  cluster: string;
  topic: string;
  place: string;
  /** The address of this page with another record, or with none. */
  link: (place: string) => string;
}) {
  const [partition = "", offset = ""] = props.place.split(":");
  const path = apiPath(props.cluster, "record", { topic: props.topic, partition, offset });
  const shown = useOnce<OneRecord>(path).value;
  if (shown === undefined) return <Loading />;
  if ("kind" in shown) return <Trouble problem={shown} />;
  const { record } = shown;
  return (
    <section class="card" data-record={props.place}>
      <div class="head">
        <h2>
          {t("Partition")} {partition}, {t("Offset")} {offset}
        </h2>
        <div class="row">
          {Number(offset) > 0 && (
            <a class="button" href={props.link(`${partition}:${Number(offset) - 1}`)}>
              ← {Number(offset) - 1}
            </a>
          )}
          <a class="button" href={props.link(`${partition}:${Number(offset) + 1}`)}>
            {Number(offset) + 1} →
          </a>
          {record && <SendRecord cluster={props.cluster} topic={props.topic} place={props.place} />}
          <CopyCommand command={shown.command} />
          <a class="button" href={props.link("")}>
            {t("Close")}
          </a>
        </div>
      </div>
      <dl class="facts small">
        <dt>{t("What it is")}</dt>
        <dd data-explanation>{safe(shown.explanation)}</dd>
        <Committed cluster={props.cluster} page={shown} />
        {record && (
          <>
            <dt>{t("Time (UTC)")}</dt>
            <dd>{time(record.timestamp)}</dd>
            <dt>{t("Key")}</dt>
            <dd>
              <Whole label={t("Key")} bytes={record.key} />
            </dd>
            <dt>{t("Value")}</dt>
            <dd>
              <Whole label={t("Value")} bytes={record.value} />
            </dd>
            <dt>
              {t("Headers")} ({count(record.headers_count)})
            </dt>
            <dd>
              {record.headers.map((header, index) => (
                <div key={index}>
                  <strong>{header.name}</strong> <Whole label={header.name} bytes={header.value} />
                </div>
              ))}
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}

/** A record below the high watermark is committed, unless its transaction says otherwise. */
function Committed({ cluster, page }: { cluster: string; page: OneRecord }) {
  const outcome = page.transaction ?? (page.what === "record" ? "committed" : undefined);
  return (
    <>
      {outcome && (
        <>
          <dt>{t("Committed")}</dt>
          <dd data-outcome={outcome}>
            <span class={`tag ${OUTCOMES[outcome] ?? "warning"}`}>{t(outcome)}</span>{" "}
            <span class="quiet">
              {page.transaction === null ? t("by the in-sync replicas; of no transaction") : ""}
            </span>
          </dd>
        </>
      )}
      {page.transactional_id !== null && (
        <>
          <dt>{t("Transaction")}</dt>
          <dd>
            <a href={linkTo(cluster, "transactions", page.transactional_id)}>
              {safe(page.transactional_id)}
            </a>
          </dd>
        </>
      )}
      {page.producer_id !== null && (
        <>
          <dt>{t("Producer")}</dt>
          <dd>
            {page.producer_id} · {t("epoch {epoch}", { epoch: page.producer_epoch ?? "–" })}
          </dd>
        </>
      )}
    </>
  );
}

function Whole({ label, bytes }: { label: string; bytes: ShownBytes }) {
  if (bytes.form === "null") return <span class="quiet">null</span>;
  return (
    <>
      <span class="tag">{bytes.form}</span>{" "}
      <span class="quiet">
        {bytes.schema && `${bytes.schema} · `}
        {size(bytes.size_bytes)}
      </span>{" "}
      {bytes.is_cut && <span class="tag warning">{t("only its beginning is shown")}</span>}
      {bytes.problem && <span class="tag warning wrap">{bytes.problem}</span>}
      <pre class="value" tabIndex={0} role="region" aria-label={label} data-whole>
        {STRUCTURED.includes(bytes.form) ? indented(bytes.text) : bytes.text}
      </pre>
    </>
  );
}
