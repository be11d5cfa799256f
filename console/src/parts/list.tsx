// A long list: what is searched, the part that is shown, the way to the others. The server searches
// and cuts.
import { linkTo } from "../address";
import type { Part } from "../api";
import { count } from "../text";
import { t } from "../words";
import { Empty } from "./state";
import { Table } from "./table";
import type { Rows } from "./table";

export interface Listed {
  cluster: string;
  page: string;
  name?: string;
  /** What stays in the address. */
  kept?: Record<string, string>;
  part: Part;
  /** What its values in the address begin with, if the page has another list. */
  prefix?: string;
}

export function List<T>(
  props: Rows<T> & {
    list: Listed;
    /** What is searched. */
    search: string;
    hasSearch?: boolean;
    /** What is said where there is nothing, and where nothing is like the search. */
    empty: string;
    none: string;
  },
) {
  const { list, search, hasSearch = true, empty, none, ...rows } = props;
  return (
    <>
      {hasSearch && <Search {...list} label={search} />}
      {rows.rows.length > 0 ? (
        <Table {...rows} />
      ) : (
        <Empty>{list.part.search ? none : empty}</Empty>
      )}
      <Parts {...list} />
    </>
  );
}

/** A list that fits on one page needs no search, but what was searched can be changed. */
export function isLong(part: Part): boolean {
  return part.total > part.rows_max || part.search !== "";
}

function Search(props: Listed & { label: string }) {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const asked = { ...props.kept, [`${props.prefix ?? ""}search`]: String(form.get("search")) };
    location.hash = linkTo(props.cluster, props.page, props.name, asked);
  };
  return (
    <form class="row" role="search" onSubmit={submit}>
      <label>
        {props.label}
        <input name="search" type="search" defaultValue={props.part.search} />
      </label>
      <button type="submit">{t("Search")}</button>
    </form>
  );
}

function Parts(props: Listed) {
  const { total, first, rows_max, search } = props.part;
  if (total <= rows_max && first === 0) return null;
  const { cluster, page, name, kept, prefix = "" } = props;
  const at = (from: number) => {
    const asked = { ...kept, [`${prefix}search`]: search, [`${prefix}first`]: from };
    return linkTo(cluster, page, name, asked);
  };
  const last = Math.min(first + rows_max, total);
  return (
    <nav class="row parts small" aria-label={t("Parts of the list")}>
      <span class="quiet">
        {t("{first} to {last} of {total}", {
          first: count(first + 1),
          last: count(last),
          total: count(total),
        })}
      </span>
      {first > 0 && (
        <a class="button" href={at(Math.max(0, first - rows_max))}>
          {t("Back")}
        </a>
      )}
      {last < total && (
        <a class="button" href={at(last)}>
          {t("Next")}
        </a>
      )}
    </nav>
  );
}

/** What the address of a list asks the server for. */
export function partQuery(query: URLSearchParams, prefix = ""): Record<string, string> {
  const names = [`${prefix}search`, `${prefix}first`];
  return Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
}
