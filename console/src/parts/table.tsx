// A table that scrolls by itself on narrow screens.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { safe } from "../safe";
import { count } from "../text";
import { t } from "../words";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  isNumber?: boolean;
  /** It has the room that the others leave; a long text of it is broken anywhere. */
  isWide?: boolean;
}

export interface Rows<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string | number;
  /** What a row shows over its whole width, in the place of its cells. */
  wide?: (row: T) => ComponentChildren;
  /** How many rows are shown until somebody wants all. */
  first?: number;
}

export function Table<T>(props: Rows<T>) {
  const isWhole = useSignal(false);
  const rows = isWhole.value ? props.rows : props.rows.slice(0, props.first);
  const more = props.rows.length - rows.length;
  return (
    <div class="scroll" role="region" aria-label={props.label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.title} scope="col" class={classOf(column)}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const wide = props.wide?.(row);
            return (
              <tr key={props.rowKey(row)} data-row={props.rowKey(row)}>
                {wide ? (
                  <td colSpan={props.columns.length}>{wide}</td>
                ) : (
                  props.columns.map((column) => (
                    <td key={column.title} class={classOf(column)}>
                      {shown(column.cell(row))}
                    </td>
                  ))
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
      {more > 0 && (
        <button type="button" onClick={() => (isWhole.value = true)}>
          {t("{count} more", { count: count(more) })}
        </button>
      )}
    </div>
  );
}

function classOf<T>(column: Column<T>): string | undefined {
  return column.isNumber ? "right" : column.isWide ? "wide" : undefined;
}

/** Texts may be names that clients chose. */
function shown(cell: ComponentChildren): ComponentChildren {
  return typeof cell === "string" ? safe(cell) : cell;
}
