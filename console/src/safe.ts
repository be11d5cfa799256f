// Names are what clients chose. Characters that are not seen, or change the direction of text, are
// shown as their codes, as the server does it in records: no name can disguise itself.
const HIDDEN = /[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

export function safe(text: string): string {
  return text.replace(
    HIDDEN,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
