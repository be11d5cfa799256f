// The page of a recording, or of two beside each other: goes to any moment of it by time line, keys,
// list and address, and shows the state of one partition then.
"use strict";

(() => {
  const { newState, copyOf, add, partitionsOf, panelOf, made, filled } = window.suwiLab;
  const words = JSON.parse(document.body.dataset.words);
  const language = document.documentElement.lang;
  const KEYFRAME_EVENTS = 128;
  const PLAY_MS = 800;
  const LANES = ["prose", "election", "truncation", "loss", "fault", "violation"];
  const BEFORE = 4; // Events in the list, before the one of the moment and after it.
  const AFTER = 8;

  const time = (event) => `${event.at_s.toFixed(4)} s`;

  // -- the states of one recording -----------------------------------------------------------------

  /** A recording; `events` are those of one partition, and of no partition. */
  class Run {
    constructor(name) {
      this.name = name;
      this.all = window.suwiRecordings[name];
      this.said = JSON.parse(document.querySelector(`script[data-said="${name}"]`).textContent);
      this.all.forEach((event, index) => { event.index = index; });
    }

    partitions() {
      const found = [...new Set(this.all.map(({ partition }) => partition).filter(Boolean))];
      const own = found.filter((partition) => !partition.startsWith("__"));
      return own.length ? own : found;
    }

    /** The one that the first violation names, or the first with records. */
    usualPartition() {
      const { what = "" } = this.all.find(({ kind }) => kind === "violation") ?? {};
      const names = this.partitions();
      const named = names.find((name) => what.split(/[\s:,]/).includes(name));
      const state = newState();
      this.all.forEach((event) => add(state, event));
      return named ?? partitionsOf(state)[0] ?? names[0];
    }

    lookAt(partition) {
      this.partition = partition;
      const sends = new Set(this.all.filter((event) => event.partition === partition).map(({ number }) => number));
      this.events = this.all.filter((event) => (event.kind === "send-result"
        ? sends.has(event.number)
        : !event.partition || event.partition === partition));
      this.frames = [];
      const state = newState();
      this.events.forEach((event, position) => {
        if (position % KEYFRAME_EVENTS === 0) this.frames.push(copyOf(state));
        add(state, event);
      });
    }

    /** After the event at a position; -1: before all. */
    stateAt(position) {
      const frame = Math.max(0, Math.floor(position / KEYFRAME_EVENTS));
      const state = copyOf(this.frames[frame] ?? newState());
      this.events.slice(frame * KEYFRAME_EVENTS, position + 1).forEach((event) => add(state, event));
      return state;
    }

    /** Before everything that happened in the same instant. */
    stateBefore(position) {
      let first = position;
      while (first > 0 && this.events[first - 1].at_s === this.events[position].at_s) first -= 1;
      return this.stateAt(first - 1);
    }
  }

  // -- moments -------------------------------------------------------------------------------------

  const runs = JSON.parse(document.body.dataset.runs).map((name) => new Run(name));
  const usual = runs[0].usualPartition();
  let moments = []; // For each, the position in every run, and which runs move: all if they do the same.
  let parting = -1; // The first moment in which they do not.
  let at = 0;

  const text = ({ index, ...event }) => JSON.stringify(event);
  const isApart = ({ moved }) => moved.length < runs.length;

  function listMoments() {
    const positions = runs.map(() => -1);
    const move = (...moved) => {
      moved.forEach((number) => { positions[number] += 1; });
      moments.push({ positions: [...positions], moved });
    };
    const next = (number) => runs[number].events[positions[number] + 1];
    moments = [];
    while (runs.some((run, number) => next(number))) {
      const numbers = runs.map((run, number) => number).filter(next);
      const isSame = numbers.length === runs.length && numbers.every((number) => text(next(number)) === text(next(0)));
      const first = numbers.reduce((a, b) => (next(b).at_s < next(a).at_s ? b : a));
      move(...(isSame ? numbers : [first]));
    }
    parting = moments.findIndex(isApart);
  }

  const eventAt = ({ positions, moved }) => runs[moved[0]].events[positions[moved[0]]];
  const momentOf = (number, index) => {
    const found = moments.findIndex(({ positions, moved }) =>
      moved.includes(number) && runs[number].events[positions[number]].index >= index);
    return found < 0 ? moments.length - 1 : found;
  };
  const isMarked = (moment) => LANES.includes(eventAt(moment).kind);
  const markedAfter = (from) => moments.findIndex((moment, index) => index > from && isMarked(moment));
  const markedBefore = (from) => moments.findLastIndex((moment, index) => index < from && isMarked(moment));

  // -- the address ---------------------------------------------------------------------------------

  function address(moment) {
    const fields = new URLSearchParams();
    if (runs[0].partition !== usual) fields.set("partition", runs[0].partition);
    if (moment.moved[0]) fields.set("run", moment.moved[0] + 1);
    fields.set("event", eventAt(moment).index + 1);
    return `#${fields}`;
  }

  /** The moment that the address names; without one the first violation, or the beginning. */
  function addressed() {
    const fields = new URLSearchParams(location.hash.slice(1));
    const wanted = fields.get("partition") ?? usual;
    const partition = runs[0].partitions().includes(wanted) ? wanted : usual;
    if (partition !== runs[0].partition) choose(partition);
    const kindAt = (kind, step) => moments.findIndex((moment) =>
      eventAt(moment).kind === kind && (!step || String(eventAt(moment).step) === step));
    const number = Number(fields.get("run")) - 1;
    if (fields.has("event")) return momentOf(runs[number] ? number : 0, Number(fields.get("event")) - 1);
    const begun = fields.has("step") ? kindAt("prose", fields.get("step")) : kindAt("violation");
    return Math.max(0, begun < 0 ? kindAt("prose") : begun);
  }

  let writing;
  function writeAddress() {
    clearTimeout(writing); // Browsers refuse too many changes.
    writing = setTimeout(() => history.replaceState(null, "", address(moments[at])), 200);
  }

  // -- one moment of one run -----------------------------------------------------------------------

  function panelAt(run, moment, number) {
    const position = moment.positions[number];
    const hasMoved = moment.moved.includes(number);
    const state = run.stateAt(position);
    return panelOf(state, hasMoved ? run.stateBefore(position) : state, run.partition, words, {
      now: hasMoved ? [run.events[position]] : [],
      space: document.querySelector(".seen").clientWidth - 36,
      textOfHarm: (event) => run.said[event.index],
    });
  }

  function listOf(items, kind, label) {
    return items?.length
      ? [made("ul", { class: kind, "aria-label": label }, ...items.map((item) => made("li", {}, item)))]
      : [];
  }

  const proseOf = (step) => (step[language] || step.en || "").replaceAll("`", "");

  /** The text of the step, and what it has changed as soon as it has. */
  function stepOf(run, position) {
    const passed = run.events.slice(0, position + 1);
    const begun = passed.findLast(({ kind }) => kind === "prose");
    if (!begun) return made("div");
    const ended = passed.findLast(({ kind, step }) => kind === "result" && step === begun.step);
    const steps = run.events.filter(({ kind }) => kind === "prose").length;
    return made("div", { class: "now-step" },
      made("h2", {}, filled(words.step, begun.step, steps)),
      made("p", {}, proseOf(begun)),
      ...listOf(begun.commands, "commands", words.commands),
      ...listOf(ended?.changes, "changes", words.changes));
  }

  /** The events around the moment. */
  function listAround(number) {
    const shown = moments.map((moment, index) => [moment, index]).filter(([{ moved }]) => moved.includes(number));
    const current = Math.max(0, shown.findLastIndex(([, index]) => index <= at));
    const near = shown.slice(Math.max(0, current - BEFORE), current + AFTER + 1);
    return made("ol", { class: "near" }, ...near.map(([moment, index]) => {
      const event = runs[number].events[moment.positions[number]];
      const link = made("a", { href: address(moment) }, made("time", {}, time(event)),
        made("span", {}, runs[number].said[event.index]));
      if (index === at) link.setAttribute("aria-current", "step");
      return made("li", { class: `${event.kind}${index === parting ? " parts" : ""}${isApart(moment) ? " apart" : ""}` }, link);
    }));
  }

  // -- the page ------------------------------------------------------------------------------------

  const slider = document.querySelector("#moment");
  const status = document.querySelector("#now");
  const count = document.querySelector("#count");
  const panels = [...document.querySelectorAll(".panel")];
  const chooser = document.querySelector("#partition");

  function show(index) {
    if (!moments.length) return; // Nothing was recorded.
    at = Math.max(0, Math.min(moments.length - 1, index));
    const moment = moments[at];
    const event = eventAt(moment);
    const told = runs[moment.moved[0]].said[event.index];
    slider.value = at;
    slider.setAttribute("aria-valuetext", `${time(event)}: ${told}`);
    count.textContent = filled(words.count, at + 1, moments.length, time(event));
    const title = panels[moment.moved[0]].querySelector("h2")?.textContent;
    status.className = event.kind;
    status.textContent = [
      ...(at === parting ? [words.parts] : []), ...(isApart(moment) ? [filled(words.apart, title)] : []), told,
    ].join(" ");
    if (event.kind === "prose") status.append(made("span", { class: "said" }, ` ${proseOf(event)}`));
    panels.forEach((panel, number) => {
      const run = runs[number];
      const seen = panel.querySelector(".seen");
      seen.replaceChildren(...panelAt(run, moment, number));
      panel.querySelector(".beside").replaceChildren(stepOf(run, moment.positions[number]), listAround(number));
      const picture = seen.querySelector(".partition");
      if (picture.scrollWidth > picture.clientWidth) picture.tabIndex = 0;
    });
    writeAddress();
  }

  function drawLanes() {
    const share = (index) => `${(100 * index) / Math.max(1, moments.length - 1)}%`;
    const lanes = LANES.map((kind) => {
      const ticks = moments.flatMap((moment, index) => {
        if (eventAt(moment).kind !== kind) return [];
        const tick = made("i", { class: kind });
        tick.style.left = share(index);
        return [tick];
      });
      return ticks.length ? made("div", {}, made("span", {}, words[`lane ${kind}`]), made("div", {}, ...ticks)) : "";
    });
    document.querySelector(".lanes").replaceChildren(...lanes);
    slider.max = moments.length - 1;
    const cut = document.querySelector(".parting");
    cut.hidden = parting < 0;
    cut.style.left = share(parting);
  }

  function choose(partition) {
    runs.forEach((run) => run.lookAt(partition));
    listMoments();
    drawLanes();
    chooser.value = partition;
  }

  let playing;
  const play = document.querySelector("[data-go=play]");
  function setPlaying(isOn) {
    clearInterval(playing);
    playing = isOn ? setInterval(() => (at < moments.length - 1 ? show(at + 1) : setPlaying(false)), PLAY_MS) : undefined;
    play.setAttribute("aria-pressed", isOn);
  }

  const GO = {
    first: () => show(0),
    "previous-mark": () => show(markedBefore(at)),
    previous: () => show(at - 1),
    play: () => setPlaying(!playing),
    next: () => show(at + 1),
    "next-mark": () => show(markedAfter(at) < 0 ? moments.length - 1 : markedAfter(at)),
    last: () => show(moments.length - 1),
  };

  function go(where) {
    if (where !== "play") setPlaying(false);
    GO[where]();
  }

  for (const button of document.querySelectorAll("[data-go]")) {
    button.addEventListener("click", () => go(button.dataset.go));
  }
  slider.addEventListener("input", () => {
    setPlaying(false);
    show(Number(slider.value));
  });
  document.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: "previous", ArrowRight: "next" }[event.key];
    const isTaken = event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, .partition");
    if (!way || isTaken) return;
    go(event.shiftKey ? `${way}-mark` : way);
    event.preventDefault();
  });
  runs[0].partitions().forEach((partition) => chooser.append(made("option", {}, partition)));
  chooser.closest("label").hidden = chooser.options.length < 2;
  chooser.addEventListener("change", () => {
    const { index } = eventAt(moments[at]);
    choose(chooser.value);
    show(momentOf(0, index));
  });
  for (const link of document.querySelectorAll("a[hreflang]")) {
    link.addEventListener("click", () => { link.hash = address(moments[at]); });
  }
  window.addEventListener("hashchange", () => show(addressed()));
  window.addEventListener("resize", () => show(at));
  setPlaying(false);
  show(addressed());
})();
