// Numbers, sizes and times as people read them.
import { language } from "./words";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(value: number | null | undefined): string {
  return value == null ? "–" : value.toLocaleString(language.value);
}

export function size(bytes: number | null | undefined): string {
  if (bytes == null) return "–";
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toLocaleString(language.value, { maximumFractionDigits: unit ? 1 : 0 })} ${UNITS[unit]}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms == null) return "–";
  if (ms < 1000) return `${ms} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds < 86_400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toFixed(1)} d`;
}

/** In UTC, as the command line has it. */
export function time(ms: number): string {
  if (ms < 0 || ms > 8.64e15) return ms === -1 ? "–" : `${ms} ms`;
  return new Date(ms).toISOString().replace("T", " ");
}
