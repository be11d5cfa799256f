// The pages of one section, or the choices of a list, beside each other.
export function Tabs(props: {
  label: string;
  tabs: { title: string; href: string; isChosen: boolean }[];
}) {
  return (
    <nav class="tabs" aria-label={props.label}>
      {props.tabs.map((tab) => (
        <a key={tab.href} href={tab.href} aria-current={tab.isChosen ? "page" : undefined}>
          {tab.title}
        </a>
      ))}
    </nav>
  );
}
