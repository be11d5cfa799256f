// One partition as it is replicated, drawn as `suwi lab serve` draws a recording.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { linkTo } from "../address";
import type { LiveBegin, LiveStep, Problem, WaitingProducer } from "../api";
import { FaultCard } from "../changes/faults";
import { Head } from "../parts/head";
import { Loading, Trouble } from "../parts/state";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, isHidden, whyEnded } from "../server";
import { count, duration } from "../text";
import { language, t } from "../words";
import "../../../src/suwi/lab/web/drawing.css";
import "../../../src/suwi/lab/web/drawing.js";

const LISTED_MAX = 100;
const RECORDED_MAX = 20_000;
const SAVED_MS = 60_000; // How long a browser may take to save a file.
const GONE_MS = 3000; // How long what was truncated stays in the picture.
const FINAL = ["unsupported", "missing", "forbidden", "bad"];

interface Listed {
  number: number;
  at: string;
  kind: string;
  text: string;
}

export function LivePage({ cluster, name }: { cluster: string; name: string }) {
  const partition = place.value.query.get("partition") ?? "0";
  const path = apiPath(cluster, "live", { topic: name, partition, language: language.value });
  const begin = useSignal<LiveBegin | undefined>(undefined);
  const listed = useSignal<Listed[]>([]);
  const brokers = useSignal<number[]>([]);
  const problem = useSignal<Problem | undefined>(undefined);
  const isComplete = useSignal(true);
  const waiting = useSignal<WaitingProducer[]>([]);
  const isRunning = useSignal(true);
  const recording = useRecording();
  const frame = useRef<HTMLDivElement>(null);
  const isOn = isRunning.value && (!isHidden.value || recording.isOn);
  useEffect(() => {
    if (!isOn) return;
    const source = new EventSource(path);
    let picture: Picture | undefined;
    source.addEventListener("live", (event: MessageEvent<string>) => {
      const step = JSON.parse(event.data) as LiveStep;
      problem.value = undefined;
      isComplete.value &&= step.is_complete;
      waiting.value = step.waiting;
      if (step.begin) {
        begin.value = step.begin;
        listed.value = [];
        picture = new Picture(step.begin);
        recording.begin(step.begin);
      }
      recording.add(step);
      picture?.add(step, frame.current);
      const known = picture?.brokers() ?? [];
      if (known.join() !== brokers.value.join()) brokers.value = known;
      listed.value = [...(picture?.taken() ?? []), ...listed.value].slice(0, LISTED_MAX);
    });
    source.addEventListener("problem", (event: MessageEvent<string>) => {
      problem.value = JSON.parse(event.data) as Problem;
      if (FINAL.includes(problem.value.kind)) source.close();
    });
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        void whyEnded().then((why) => (problem.value ??= why));
      }
    };
    return () => source.close();
  }, [path, isOn, recording.number]);
  return (
    <>
      <Head
        title={name}
        about={
          <>
            {t("Partition {partition}, as it is replicated", { partition })} ·{" "}
            <a href={linkTo(cluster, "topics", name)}>{t("Topic")}</a> ·{" "}
            <a href={linkTo(cluster, "records", name, { partition })}>{t("Show the records")}</a>
          </>
        }
        command={begin.value?.command}
      />
      {problem.value && <Trouble problem={problem.value} />}
      {!begin.value && !problem.value && <Loading />}
      <div class="live" hidden={!begin.value} data-live={begin.value?.partition}>
        <section class="card">
          <div class="row middle">
            <button type="button" onClick={() => (isRunning.value = !isRunning.value)}>
              {t(isRunning.value ? "Stop" : "Go on")}
            </button>
            <RecordButton recording={recording} name={`${name}-${partition}`} />
            {!isComplete.value && (
              <span class="tag warning wrap" role="status">
                {t("Some fetches and sends are not shown: there were too many.")}
              </span>
            )}
          </div>
          <div ref={frame} />
          {waiting.value.map((each) => (
            <p class="tag warning wrap" key={each.client} data-waiting={each.client}>
              {t("{client} has waited for {waited}; its request times out in {left}", {
                client: each.client,
                waited: duration(each.waited_ms),
                left: duration(each.left_ms),
              })}
            </p>
          ))}
        </section>
        <FaultCard cluster={cluster} brokers={brokers.value} />
        <section class="card">
          <h2>{t("Elections, in-sync sets, truncations, losses and faults, the newest first")}</h2>
          <div role="log">
            {listed.value.length === 0 && <p class="quiet">{t("Nothing yet.")}</p>}
            {listed.value.map((each) => (
              <p key={each.number} class={each.kind}>
                <span class="mono quiet">{each.at}</span> {each.text}
              </p>
            ))}
          </div>
        </section>
      </div>
    </>
  );
}

/** The state of the partition, added up from events. */
class Picture {
  private readonly lab = window.suwiLab;
  private readonly state = this.lab.newState();
  private readonly texts = new WeakMap<LabEvent, string>();
  private listed: Listed[] = [];
  private lines = 0;
  private readonly replicas = new Set<number>();
  private gone: { before: LabState; until: number } | undefined;

  constructor(private readonly begin: LiveBegin) {}

  add(step: LiveStep, frame: HTMLElement | null): void {
    const before = this.lab.copyOf(this.state);
    const now = step.events.map(({ fields, text }) => {
      const event = cleaned(fields);
      this.texts.set(event, safe(text));
      if (text) this.list(event, safe(text));
      if (event["is_removed"]) this.replicas.delete(Number(event["broker"]));
      else if (["replica", "fault"].includes(String(event["kind"]))) {
        this.replicas.add(Number(event["broker"]));
      }
      this.lab.add(this.state, event);
      return event;
    });
    if (now.some(({ kind }) => kind === "truncation")) {
      this.gone = { before, until: performance.now() + GONE_MS };
    }
    if (this.gone && this.gone.until < performance.now()) this.gone = undefined;
    if (frame && now.length > 0) this.draw(this.gone?.before ?? before, now, frame);
  }

  /** Those that have a replica. */
  brokers(): number[] {
    return [...this.replicas].sort((a, b) => a - b);
  }

  /** What is new in the list, the newest first. */
  taken(): Listed[] {
    const taken = this.listed.reverse();
    this.listed = [];
    return taken;
  }

  private list(event: LabEvent, text: string): void {
    this.lines += 1;
    const at = `${Number(event["at_s"]).toFixed(1)} s`;
    this.listed.push({ number: this.lines, at, kind: String(event["kind"]), text });
  }

  private draw(before: LabState, now: LabEvent[], frame: HTMLElement): void {
    const old = frame.querySelector<HTMLElement>(".partition");
    const [left, hasFocus] = [old?.scrollLeft ?? 0, document.activeElement === old];
    const { partition, words } = this.begin;
    const elements = this.lab.panelOf(this.state, before, partition, words, {
      now,
      space: frame.clientWidth,
      textOfHarm: (event) => this.texts.get(event) ?? "",
    });
    frame.replaceChildren(...elements);
    const drawn = frame.querySelector<HTMLElement>(".partition");
    if (!drawn || drawn.scrollWidth <= drawn.clientWidth) return;
    drawn.tabIndex = 0;
    drawn.scrollLeft = left;
    if (hasFocus) drawn.focus();
  }
}

/** Names that clients chose are shown as text that hides nothing. */
function cleaned(fields: LabEvent): LabEvent {
  const entries = Object.entries(fields);
  return Object.fromEntries(entries.map(([k, v]) => [k, typeof v === "string" ? safe(v) : v]));
}

/** A recording is a stream from its beginning, which has the whole state, as lines of JSON. */
class Recording {
  readonly lines: string[] = [];
  constructor(
    readonly state: { value: "off" | "on" | "ended" },
    readonly started: { value: number },
    readonly events: { value: number },
  ) {}

  get number(): number {
    return this.started.value;
  }

  get isOn(): boolean {
    return this.state.value === "on";
  }

  start(): void {
    this.lines.length = 0;
    this.events.value = 0;
    this.state.value = "on";
    this.started.value += 1;
  }

  begin({ head }: LiveBegin): void {
    if (!this.isOn) return;
    if (this.lines.length === 0) this.lines.push(JSON.stringify(head));
    else this.state.value = "ended"; // The stream was interrupted: what was between is not known.
  }

  add(step: LiveStep): void {
    if (!this.isOn || this.lines.length === 0) return; // An earlier stream has not ended yet.
    this.lines.push(...step.events.map(({ fields }) => JSON.stringify(fields)));
    this.events.value = this.lines.length - 1;
    if (this.lines.length > RECORDED_MAX) this.state.value = "ended";
  }

  save(name: string): void {
    const content = new Blob([this.lines.map((line) => `${line}\n`).join("")]);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = `${name}.jsonl`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), SAVED_MS);
    this.state.value = "off";
  }
}

function useRecording(): Recording {
  const state = useSignal<"off" | "on" | "ended">("off");
  const started = useSignal(0);
  const events = useSignal(0);
  const recording = useRef<Recording>(null);
  recording.current ??= new Recording(state, started, events);
  return recording.current;
}

function RecordButton({ recording, name }: { recording: Recording; name: string }) {
  if (recording.state.value === "off") {
    return (
      <button type="button" data-record="off" onClick={() => recording.start()}>
        {t("Record")}
      </button>
    );
  }
  return (
    <>
      <button
        type="button"
        class="main"
        data-record={recording.state.value}
        onClick={() => recording.save(name)}
      >
        {t("Save the recording ({count} events)", { count: count(recording.events.value) })}
      </button>
      {recording.state.value === "ended" && (
        <span class="tag warning wrap" role="status">
          {t("The recording has ended. suwi lab serve plays it.")}
        </span>
      )}
    </>
  );
}
