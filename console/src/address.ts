// Addresses of pages: `#/cluster/page/name?key=value`. The server never sees what follows the #.
export interface Place {
  cluster: string;
  page: string;
  name: string;
  query: URLSearchParams;
}

export function parsePlace(hash: string): Place {
  const [path = "", query = ""] = splitOnce(hash.replace(/^#\/?/, ""), "?");
  const [cluster = "", page = "", name = ""] = path.split("/").map(decoded);
  return { cluster, page: page || "overview", name, query: new URLSearchParams(query) };
}

function splitOnce(text: string, at: string): string[] {
  const index = text.indexOf(at);
  return index < 0 ? [text] : [text.slice(0, index), text.slice(index + 1)];
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function linkTo(
  cluster: string,
  page: string,
  name = "",
  query: Record<string, string | number> = {},
): string {
  const path = [cluster, page, name].filter(Boolean).map(encodeURIComponent).join("/");
  const asked = queryText(query);
  return `#/${path}${asked && `?${asked}`}`;
}

export function queryText(query: Record<string, string | number>): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  return new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
}
