// JSON with line breaks, as it was written: it is not parsed, so no number loses a digit.
const INDENT_MAX = 20;
const TOKEN = /"(?:[^"\\]|\\.)*"?|[[\]{}:,]|[^[\]{}:,"]+/gs;

export function indented(json: string): string {
  const pieces: string[] = [];
  let depth = 0;
  let isEmpty = false; // nothing has followed the last bracket
  const line = () => `\n${"  ".repeat(Math.min(Math.max(depth, 0), INDENT_MAX))}`;
  for (const [token] of json.matchAll(TOKEN)) {
    const text = token.startsWith('"') ? token : token.trim();
    if (!text) continue;
    if (text === "}" || text === "]") {
      depth -= 1;
      if (isEmpty) pieces.pop();
      else pieces.push(line());
    }
    pieces.push(text === ":" ? ": " : text);
    isEmpty = text === "{" || text === "[";
    if (isEmpty) depth += 1;
    if (isEmpty || text === ",") pieces.push(line());
  }
  return pieces.join("");
}
