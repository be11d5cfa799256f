// English and Korean. English texts are the keys; text of the server stays as it is.
import { signal } from "@preact/signals";
import { korean } from "./korean";
import { remember, remembered } from "./memory";
import { safe } from "./safe";

export type Language = "en" | "ko";

const chosen = remembered("language");
const preferred = navigator.language.startsWith("ko") ? "ko" : "en";
export const language = signal<Language>(chosen === "ko" || chosen === "en" ? chosen : preferred);

export function chooseLanguage(wanted: Language): void {
  language.value = wanted;
  remember("language", wanted);
}

/** The text in the chosen language; `{name}` is replaced by a value, which may be a name. */
export function t(english: string, values: Record<string, string | number> = {}): string {
  const text = language.value === "ko" ? (korean[english] ?? english) : english;
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => safe(String(values[name] ?? whole)));
}
