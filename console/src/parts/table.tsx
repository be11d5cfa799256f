// A table that scrolls by itself on narrow screens.
import type { ComponentChildren } from "preact";
import { safe } from "../safe";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  isNumber?: boolean;
}

export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string | number;
  /** What a row shows over its whole width, in the place of its cells. */
  wide?: (row: T) => ComponentChildren;
}) {
  return (
    <div class="scroll" role="region" aria-label={props.label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.title} scope="col" class={column.isNumber ? "right" : undefined}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => {
            const wide = props.wide?.(row);
            return (
              <tr key={props.rowKey(row)} data-row={props.rowKey(row)}>
                {wide ? (
                  <td colSpan={props.columns.length}>{wide}</td>
                ) : (
                  props.columns.map((column) => (
                    <td key={column.title} class={column.isNumber ? "right" : undefined}>
                      {shown(column.cell(row))}
                    </td>
                  ))
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Texts may be names that clients chose. */
function shown(cell: ComponentChildren): ComponentChildren {
  return typeof cell === "string" ? safe(cell) : cell;
}
