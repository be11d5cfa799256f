// The records of a topic: a page of them, one of them, the newest as they come, a search.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { linkTo } from "../address";
import type {
  Gap,
  PartitionRange,
  Problem,
  Records,
  SearchEvent,
  ShownRecord,
  TailEvent,
} from "../api";
import { ExportLinks } from "../changes/export";
import { SendRecord } from "../changes/record";
import { GapNote } from "../parts/gap";
import { CopyCommand, Head } from "../parts/head";
import { OneRecordCard, Preview } from "../parts/record";
import { Empty, Loading, Trouble } from "../parts/state";
import { Table } from "../parts/table";
import { isAtEnd, isBackward, readOn, withNew } from "../read_on";
import { place } from "../route";
import { apiPath, isHidden, useOnce, whyEnded } from "../server";
import { count, time } from "../text";
import { t } from "../words";

const TAIL_ROWS_MAX = 500;
const RANGES_MAX = 50;
const ROWS = 50;
const TITLES: Record<string, string> = {
  tail: "The newest records, as they come",
  search: "Records with a text",
};
type Query = Record<string, string>;

export function RecordsPage({ cluster, name }: { cluster: string; name: string }) {
  const query = Object.fromEntries(place.value.query);
  const mode = query["mode"] ?? "";
  return (
    <>
      <Head
        title={name}
        about={
          <>
            {t(TITLES[mode] ?? "Records")} ·{" "}
            <a href={linkTo(cluster, "topics", name)}>{t("Topic")}</a>
          </>
        }
      />
      <div class="row changes">
        <SendRecord cluster={cluster} topic={name} />
      </div>
      <Asked cluster={cluster} name={name} query={query} key={JSON.stringify(query)} />
      {query["record"] && (
        <OneRecordCard
          cluster={cluster}
          topic={name}
          place={query["record"]}
          link={(record) => linkTo(cluster, "records", name, { ...query, record })}
        />
      )}
      {mode === "tail" && <Tail cluster={cluster} name={name} query={query} />}
      {mode === "search" && <Found cluster={cluster} name={name} query={query} />}
      {mode === "" && <List cluster={cluster} name={name} query={query} />}
    </>
  );
}

/** What is asked for: it becomes the address, which can be sent to a colleague. */
function Asked({ cluster, name, query }: { cluster: string; name: string; query: Query }) {
  const { from: wanted = "end" } = query;
  const from = useSignal(wanted === "before" ? "end" : wanted);
  const where = useSignal(query["in"] ?? "any");
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const value = (field: string) => String(form.get(field) ?? "");
    const asked: Query = { partition: value("partition"), from: value("from") };
    if (asked["from"] === "at")
      asked["at"] = `${asked["partition"] || "0"}:${value("offset") || "0"}`;
    if (asked["from"] === "time") asked["time_ms"] = String(Date.parse(`${value("time")}Z`) || 0);
    const committed = value("committed");
    if (value("text"))
      Object.assign(asked, {
        mode: "search",
        text: value("text"),
        in: value("in"),
        path: value("path"),
      });
    const isTail = (event.submitter as HTMLButtonElement | null)?.name === "tail";
    const chosen = isTail ? { mode: "tail", partition: asked["partition"] ?? "" } : asked;
    location.hash = linkTo(cluster, "records", name, { ...chosen, committed });
  };
  const at = wanted === "at" ? (query["at"] ?? "") : "";
  const [only = "", offset = ""] = at.includes(",") ? [] : at.split(":");
  return (
    <form class="card row" onSubmit={submit} aria-label={t("Which records")}>
      <label>
        {t("Partition")}
        <input
          name="partition"
          type="number"
          min="0"
          placeholder={t("all")}
          defaultValue={query["partition"] ?? only}
        />
      </label>
      <label>
        {t("From")}
        <select
          name="from"
          value={from.value}
          onChange={(event) => (from.value = event.currentTarget.value)}
        >
          <option value="end">{t("the newest")}</option>
          <option value="start">{t("the oldest")}</option>
          <option value="at">{t("an offset")}</option>
          <option value="time">{t("a time")}</option>
        </select>
      </label>
      {from.value === "at" && (
        <label>
          {t("Offset")}
          <input name="offset" type="number" min="0" defaultValue={offset} />
        </label>
      )}
      {from.value === "time" && (
        <label>
          {t("Time (UTC)")}
          <input
            name="time"
            type="datetime-local"
            step="1"
            required
            defaultValue={inputTime(Number(query["time_ms"]))}
          />
        </label>
      )}
      <label>
        {t("Transactions")}
        <select name="committed" value={query["committed"] ?? ""}>
          <option value="">{t("all records")}</option>
          <option value="yes">{t("only committed ones")}</option>
        </select>
      </label>
      <label>
        {t(where.value === "path" ? "With the value" : "With the text")}
        <input name="text" type="search" defaultValue={query["text"] ?? ""} />
      </label>
      <label>
        {t("In")}
        <select
          name="in"
          value={where.value}
          onChange={(event) => (where.value = event.currentTarget.value)}
        >
          <option value="any">{t("key, value or header")}</option>
          <option value="key">{t("key")}</option>
          <option value="value">{t("value")}</option>
          <option value="header">{t("header")}</option>
          <option value="path">{t("JSON path")}</option>
        </select>
      </label>
      {where.value === "path" && (
        <label>
          {t("JSON path")}
          <input
            name="path"
            class="mono"
            placeholder="$.order.id"
            pattern="\$.*"
            required
            defaultValue={query["path"] ?? ""}
          />
        </label>
      )}
      <button type="submit" class="main">
        {t("Show")}
      </button>
      <button type="submit" name="tail">
        {t("Follow the newest")}
      </button>
    </form>
  );
}

function List({ cluster, name, query }: { cluster: string; name: string; query: Query }) {
  const asked = withoutMode(query);
  const path = apiPath(cluster, "records", { topic: name, ...asked });
  const shown = useOnce<Records>(path).value;
  if (shown === undefined) return <Loading />;
  if ("kind" in shown) return <Trouble problem={shown} />;
  const isMore = asked["from"] !== undefined && asked["from"] !== "end" && !isAtEnd(shown.ranges);
  return (
    <>
      <section class="card">
        {shown.is_cut && (
          <p class="tag warning wrap" role="status" data-cut>
            {t("This page ends early: the records are large, or reading them takes long.")}
          </p>
        )}
        {shown.records.length === 0 && !shown.is_cut && (
          <Empty>{t("There are no records here.")}</Empty>
        )}
        {(shown.records.length > 0 || shown.gaps.length > 0) && (
          <RecordTable
            cluster={cluster}
            name={name}
            query={query}
            records={shown.records}
            gaps={shown.gaps}
          />
        )}
        <div class="head">
          <Ranges ranges={shown.ranges} />
          <CopyCommand command={shown.command} />
        </div>
        <div class="row">
          <ExportLinks cluster={cluster} topic={name} asked={asked} />
          {earlier(shown.ranges) && (
            <a
              href={linkTo(cluster, "records", name, {
                ...readOn(asked, shown.ranges, null),
                at: earlier(shown.ranges),
              })}
            >
              {t("Earlier")}
            </a>
          )}
          {isMore && (
            <a href={linkTo(cluster, "records", name, readOn(asked, shown.ranges, shown.rest))}>
              {t("Next")}
            </a>
          )}
        </div>
      </section>
    </>
  );
}

/** What the server is asked for. */
function withoutMode(query: Query): Query {
  const own = ["mode", "record"];
  return Object.fromEntries(Object.entries(query).filter(([key]) => !own.includes(key)));
}

/** Where the page before begins, of one partition. */
function earlier(ranges: PartitionRange[]): string {
  const [range] = ranges;
  if (!range || ranges.length > 1 || range.first <= range.start) return "";
  return `${range.partition}:${Math.max(range.start, range.first - ROWS)}`;
}

/** A time as the browser's field for it has it, in UTC. */
function inputTime(ms: number): string {
  return ms > 0 && ms < 8.64e15 ? new Date(ms).toISOString().slice(0, 19) : "";
}

/** How far it was read. */
function Ranges({ ranges }: { ranges: PartitionRange[] }) {
  const sum = (part: (range: PartitionRange) => number) =>
    ranges.reduce((total, range) => total + Math.max(0, part(range)), 0);
  const left = sum((range) => range.end - range.next);
  const isOpen = useSignal(false);
  return (
    <details
      class="small"
      data-left={left}
      onToggle={(event) => (isOpen.value = event.currentTarget.open)}
    >
      <summary class="quiet">
        {t("{before} offsets before, {read} read, {left} follow up to the end of the log", {
          before: count(sum((range) => range.first - range.start)),
          read: count(sum((range) => range.next - range.first)),
          left: count(left),
        })}
      </summary>
      {isOpen.value && (
        <Table
          label={t("How far it was read")}
          rows={ranges.slice(0, RANGES_MAX)}
          rowKey={(range) => `range-${range.partition}`}
          columns={[
            { title: t("Partition"), isNumber: true, cell: (range) => range.partition },
            { title: t("First offset"), isNumber: true, cell: (range) => range.start },
            { title: t("Read from"), isNumber: true, cell: (range) => range.first },
            { title: t("Read up to"), isNumber: true, cell: (range) => range.next },
            { title: t("End offset"), isNumber: true, cell: (range) => range.end },
          ]}
        />
      )}
      {ranges.length > RANGES_MAX && "…"}
    </details>
  );
}

function Tail({ cluster, name, query }: { cluster: string; name: string; query: Query }) {
  const { partition = "", committed = "" } = query;
  const path = apiPath(cluster, "tail", { topic: name, partition, committed });
  const records = useSignal<ShownRecord[]>([]);
  const command = useSignal("");
  const skipped = useSignal(0);
  const isRunning = useSignal(true);
  const isReady = useSignal(false);
  const hasMissed = useSignal(false);
  const problem = useSignal<Problem | undefined>(undefined);
  const isOn = isRunning.value && !isHidden.value;
  useEffect(() => {
    if (!isOn) return;
    const source = new EventSource(path);
    source.addEventListener("tail", (event: MessageEvent<string>) => {
      const tail = JSON.parse(event.data) as TailEvent;
      isReady.value = true;
      command.value = tail.command;
      problem.value = undefined;
      records.value = [...tail.records.toReversed(), ...records.value].slice(0, TAIL_ROWS_MAX);
      skipped.value += tail.skipped;
    });
    source.addEventListener("problem", (event: MessageEvent<string>) => {
      problem.value = JSON.parse(event.data) as Problem;
    });
    source.onerror = () => {
      problem.value ??= { kind: "stopped", text: "" };
      if (source.readyState === EventSource.CLOSED) {
        void whyEnded().then((why) => (problem.value = why));
      }
    };
    return () => {
      source.close();
      hasMissed.value ||= isHidden.value;
    };
  }, [path, isOn]);
  return (
    <>
      {problem.value && <Trouble problem={problem.value} />}
      <section class="card" data-tail={isReady.value}>
        <div class="row middle">
          <button type="button" onClick={() => (isRunning.value = !isRunning.value)}>
            {t(isRunning.value ? "Stop" : "Go on")}
          </button>
          {skipped.value > 0 && (
            <span class="tag warning" role="status">
              {t("{count} records are not shown: more came than can be read", {
                count: count(skipped.value),
              })}
            </span>
          )}
          {hasMissed.value && (
            <span class="tag warning wrap" data-missed>
              {t("What came while this page was hidden is not shown")}
            </span>
          )}
          {command.value && <CopyCommand command={command.value} />}
        </div>
        {records.value.length === 0 ? (
          <Empty>{t("Waiting for new records …")}</Empty>
        ) : (
          <RecordTable cluster={cluster} name={name} query={query} records={records.value} />
        )}
      </section>
    </>
  );
}

function Found({ cluster, name, query }: { cluster: string; name: string; query: Query }) {
  const asked = withoutMode(query);
  const isBack = isBackward(query);
  const path = apiPath(cluster, "search", { topic: name, ...asked });
  const records = useSignal<ShownRecord[]>([]);
  const ranges = useSignal<PartitionRange[]>([]);
  const rest = useSignal<number | null>(null);
  const searched = useSignal(0);
  const command = useSignal("");
  const problem = useSignal<Problem | undefined>(undefined);
  const isStopped = useSignal(false);
  const isDone = useSignal(false);
  const isRunning = !isStopped.value && !isDone.value && !problem.value;
  const isOn = isRunning && !isHidden.value;
  useEffect(() => {
    records.value = [];
    ranges.value = [];
    command.value = "";
    searched.value = 0;
    problem.value = undefined;
    isStopped.value = isDone.value = false;
  }, [path]);
  useEffect(() => {
    if (!isOn) return;
    const before = searched.value; // until this page was hidden
    const left = before > 0 ? readOn(query, ranges.value, rest.value) : {};
    const source = new EventSource(apiPath(cluster, "search", { topic: name, ...asked, ...left }));
    source.addEventListener("search", (event: MessageEvent<string>) => {
      const found = JSON.parse(event.data) as SearchEvent;
      records.value = [...records.value, ...found.matches];
      ranges.value = withNew(ranges.value, found.ranges);
      rest.value = found.rest;
      searched.value = before + found.searched;
      command.value ||= found.command;
      isDone.value = found.is_done;
      if (found.is_done) source.close();
    });
    source.addEventListener("problem", (event: MessageEvent<string>) => {
      problem.value = JSON.parse(event.data) as Problem;
      source.close();
    });
    // It would begin anew.
    source.onerror = () => {
      source.close();
      void whyEnded().then((why) => (problem.value ??= why));
    };
    return () => source.close();
  }, [path, isOn]);
  return (
    <>
      {problem.value && <Trouble problem={problem.value} />}
      <section class="card">
        <div class="row middle">
          {isRunning && (
            <button type="button" onClick={() => (isStopped.value = true)}>
              {t("Stop")}
            </button>
          )}
          <span role="status" data-searched={isRunning ? undefined : searched.value}>
            {t("{found} found in {searched} records", {
              found: count(records.value.length),
              searched: count(searched.value),
            })}
          </span>
          {!isRunning && !isAtEnd(ranges.value, isBack) && (
            <a
              href={linkTo(cluster, "records", name, {
                ...asked,
                mode: "search",
                ...readOn(query, ranges.value, rest.value),
              })}
            >
              {t("Search on")}
            </a>
          )}
          {!isRunning && !isBack && ranges.value.some((range) => range.first > range.start) && (
            <a
              href={linkTo(cluster, "records", name, {
                ...asked,
                mode: "search",
                from: "start",
                at: "",
                rest: "",
              })}
            >
              {t("Search from the oldest on")}
            </a>
          )}
          {command.value && <CopyCommand command={command.value} />}
        </div>
        {records.value.length > 0 && (
          <RecordTable cluster={cluster} name={name} query={query} records={records.value} />
        )}
        {isBack && (
          <p class="quiet small">
            {t(
              "It looks from the newest towards the start of the log, piece by piece: of each piece the newest come first.",
            )}
          </p>
        )}
        {ranges.value.length > 0 && <Ranges ranges={ranges.value} />}
        <ExportLinks cluster={cluster} topic={name} asked={asked} />
      </section>
    </>
  );
}

type Row = ShownRecord | Gap;

function RecordTable(props: {
  cluster: string;
  name: string;
  query: Query;
  records: ShownRecord[];
  gaps?: Gap[];
}) {
  const { cluster, name, query } = props;
  const link = (row: ShownRecord) =>
    linkTo(cluster, "records", name, { ...query, record: `${row.partition}:${row.offset}` });
  const cell = (show: (row: ShownRecord) => ComponentChildren) => (row: Row) =>
    "offset" in row ? show(row) : null;
  return (
    <Table<Row>
      label={t("Records")}
      rows={withGaps(props.records, props.gaps ?? [], (query["from"] ?? "end") === "end")}
      rowKey={(row) =>
        "offset" in row ? `${row.partition}:${row.offset}` : `gap-${row.partition}:${row.first}`
      }
      wide={(row) =>
        "offset" in row ? undefined : <GapNote cluster={cluster} topic={name} gap={row} />
      }
      columns={[
        { title: t("Partition"), isNumber: true, cell: cell((row) => row.partition) },
        {
          title: t("Offset"),
          isNumber: true,
          cell: cell((row) => <a href={link(row)}>{row.offset}</a>),
        },
        {
          title: t("Time (UTC)"),
          cell: cell((row) => <span class="mono">{time(row.timestamp)}</span>),
        },
        { title: t("Key"), cell: cell((row) => <Preview bytes={row.key} isShort />) },
        {
          title: t("Value"),
          isWide: true,
          cell: cell((row) => <Preview bytes={row.value} />),
        },
        { title: t("Headers"), isNumber: true, cell: cell((row) => count(row.headers_count)) },
      ]}
    />
  );
}

/** Each gap beside the record that follows it in the log. Gaps that none follows are at the end of
 * the log, or of what was read. */
function withGaps(records: ShownRecord[], gaps: Gap[], isNewestFirst: boolean): Row[] {
  const before = new Map(gaps.map((gap) => [`${gap.partition}:${gap.end}`, gap]));
  const rows = records.flatMap((record): Row[] => {
    const place = `${record.partition}:${record.offset}`;
    const gap = before.get(place);
    before.delete(place);
    if (!gap) return [record];
    return isNewestFirst ? [record, gap] : [gap, record];
  });
  const left = [...before.values()];
  return isNewestFirst ? [...left, ...rows] : [...rows, ...left];
}
