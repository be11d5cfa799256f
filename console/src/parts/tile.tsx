// One number that matters, and whether it is good.
import type { ComponentChildren } from "preact";

export type Mood = "good" | "warning" | "error" | "";

export function Tile(props: {
  name: string;
  title: string;
  mood?: Mood;
  href?: string;
  children: ComponentChildren;
}) {
  const title = props.href ? <a href={props.href}>{props.title}</a> : props.title;
  return (
    <div class={`card tile ${props.mood ?? ""}`} data-tile={props.name}>
      <div class="small">{title}</div>
      <div class="number">{props.children}</div>
    </div>
  );
}
