// The records that are shown, or found by a search, as a file.
import { apiPath } from "../server";
import { t } from "../words";

export function ExportLinks(props: {
  cluster: string;
  topic: string;
  asked: Record<string, string>;
}) {
  const link = (format: string) =>
    apiPath(props.cluster, "export", { topic: props.topic, ...props.asked, format });
  return (
    <p class="small quiet links" data-export>
      {t(
        props.asked["text"]
          ? "Up to 10,000 found records of the first GiB as a file:"
          : "Up to 10,000 of these records as a file:",
      )}{" "}
      <a href={link("jsonl")} download>
        {t("JSON lines")}
      </a>{" "}
      <a href={link("csv")} download>
        CSV
      </a>
    </p>
  );
}
