// One figure over the last hour, as the console has sampled it.
import { useSignal } from "@preact/signals";
import type { ReadonlySignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Series } from "../api";
import { apiPath, ask } from "../server";
import { count, duration, size } from "../text";
import { t } from "../words";

const TIME_WIDTH = 80; // of a text on the axis, with the space beside it
const SPACE = 8; // above the line
const WINDOW_S_MIN = 60;
const PERIOD_MS = 5000;
type Query = Record<string, string | number>;
type Figure = "records_per_s" | "bytes_per_s" | "lag" | "lag_ms";
interface Scale {
  form: (value: number) => string;
  /** The least value at its top. */
  top: number;
  /** Steps between its marks, if others than 1, 2, 5, 10 … are round. */
  steps?: number[];
}
const SCALES: Record<Figure, Scale> = {
  records_per_s: { form: count, top: 1 },
  bytes_per_s: {
    form: (value) => `${size(value)}/s`,
    top: 1024,
    steps: Array.from({ length: 50 }, (_, power) => 2 ** power),
  },
  lag: { form: count, top: 1 },
  lag_ms: {
    form: duration,
    top: 1000,
    steps: [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200]
      .concat(Array.from({ length: 20 }, (_, power) => 86_400 * 2 ** power))
      .map((seconds) => seconds * 1000),
  },
};

/** `query` says of what: a topic, a group, a broker, or else the whole cluster. */
export function HourCharts(props: {
  cluster: string;
  query?: Query;
  titles: Partial<Record<Figure, string>>;
  /** Why a figure is missing, where the cluster does not tell it. */
  missing?: Partial<Record<Figure, string>>;
}) {
  const series = useSeries(apiPath(props.cluster, "series", props.query)).value;
  return (
    <>
      {(Object.entries(props.titles) as [Figure, string][]).map(([figure, title]) => (
        <HourChart
          key={figure}
          figure={figure}
          title={title}
          series={series}
          missing={props.missing?.[figure]}
        />
      ))}
    </>
  );
}

/** Read again and again: a stream would take one of the browser's few connections. */
function useSeries(path: string): ReadonlySignal<Series | undefined> {
  const series = useSignal<Series | undefined>(undefined);
  useEffect(() => {
    let isGone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      try {
        if (!document.hidden) series.value = await ask<Series>(path);
      } catch {
        // The page itself says what is wrong.
      }
      if (!isGone) timer = setTimeout(() => void read(), PERIOD_MS);
    };
    void read();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [path]);
  return series;
}

function HourChart(props: {
  figure: Figure;
  title: string;
  series: Series | undefined;
  missing: string | undefined;
}) {
  const { series, title } = props;
  const values = series?.[props.figure] ?? [];
  const now = values.at(-1);
  if (props.missing && series && series.times_ms.length > 0 && values.length === 0) {
    return (
      <section class="card" data-missing-figure={props.figure}>
        <h2>{title}</h2>
        <p class="quiet">{props.missing}</p>
      </section>
    );
  }
  const note = series?.is_incomplete
    ? t("There are more topics and groups than the console samples.")
    : values.length < 2 && t("Sampled since the console was started; the first comes soon.");
  return (
    <section class="card" data-hour={props.figure} data-points={values.length}>
      <h2 class="figure">
        {title}
        {now != null && `: ${SCALES[props.figure].form(Math.round(now))}`}
        <span class="quiet small">{t("the last hour")}</span>
      </h2>
      <Chart
        label={title}
        scale={SCALES[props.figure]}
        times={(series?.times_ms ?? []).map((ms) => ms / 1000)}
        values={values}
      />
      {note && <p class="quiet small">{note}</p>}
    </section>
  );
}

/** In UTC, as all times of the console; with seconds only if they differ. */
function clockTexts(times: number[]): string[] {
  const end = times.every((time) => time % 60 === 0) ? 16 : 19;
  return times.map((time) => new Date(time * 1000).toISOString().slice(11, end));
}

/** A line needs two points. */
const isLonely = (plot: uPlot) => plot.data[0].length === 1;

function Chart(props: { label: string; scale: Scale; times: number[]; values: (number | null)[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    if (!box.current) return;
    const { scale } = props;
    const style = getComputedStyle(box.current); // it follows the color scheme
    const axis = { stroke: () => style.color, grid: { show: false }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: box.current.clientWidth,
        height: 180,
        legend: { show: false },
        cursor: { show: false },
        padding: [SPACE, null, 0, 0],
        axes: [
          { ...axis, size: 24, space: TIME_WIDTH, values: (_, times) => clockTexts(times) },
          {
            ...axis,
            size: 80,
            grid: { stroke: () => style.columnRuleColor, width: 1 },
            values: (_, marks) => marks.map((mark) => scale.form(mark)),
            ...(scale.steps && { incrs: scale.steps }),
          },
        ],
        scales: {
          x: {
            range: (plot, least, most) => {
              // Of a single point uPlot makes a day.
              const end = (isLonely(plot) ? least : most) ?? Date.now() / 1000;
              return [Math.min(least ?? end, end - WINDOW_S_MIN), end];
            },
          },
          y: { range: (_, least, most) => [Math.min(0, least), Math.max(scale.top, most * 1.1)] },
        },
        series: [
          {},
          {
            stroke: () => style.borderTopColor,
            fill: () => `color-mix(in srgb, ${style.borderTopColor} 10%, transparent)`,
            width: 2,
            points: { show: isLonely },
          },
        ],
      },
      [[], []],
      box.current,
    );
    plot.current = made;
    const resized = new ResizeObserver(() =>
      made.setSize({ width: box.current?.clientWidth ?? 0, height: 180 }),
    );
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => {
    plot.current?.setData([props.times, props.values]);
  }, [props.times.at(-1), props.times.length]);
  return <div class="chart quiet" role="img" aria-label={props.label} ref={box} />;
}
