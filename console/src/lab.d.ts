// What src/suwi/lab/web/drawing.js defines. docs/lab.md has the fields of events.
type LabEvent = Record<string, unknown>;

interface LabState {
  at_s: number;
}

interface Window {
  suwiLab: {
    newState: () => LabState;
    copyOf: (state: LabState) => LabState;
    add: (state: LabState, event: LabEvent) => void;
    panelOf: (
      state: LabState,
      before: LabState,
      partition: string,
      words: Record<string, string>,
      moment: { now: LabEvent[]; space: number; textOfHarm: (event: LabEvent) => string },
    ) => Element[];
  };
}
