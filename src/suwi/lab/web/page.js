// A page of a scenario: draws its pictures, shows one alternative beside the run, steps by keys.
"use strict";

(() => {
  const { moments, partitionsOf, draw } = window.suwiLab;
  const words = JSON.parse(document.body.dataset.words);
  const known = new Map();

  function momentsOf(run) {
    if (!known.has(run)) known.set(run, moments(window.suwiRecordings[run]));
    return known.get(run);
  }

  function caption(state, partition) {
    const { leader, epoch, inSync } = state.partitions[partition];
    const members = inSync.map((broker) => `b${broker}`).join(" ") || words.none;
    const made = document.createElement("p");
    made.textContent = `${partition.replace(/-0$/, "")}: ${words.leader} ${leader ? `b${leader}` : words.none}, `
      + `${words.epoch} ${epoch}, ${words["in sync"]} ${members}`;
    return made;
  }

  for (const picture of document.querySelectorAll("[data-run]")) {
    const step = Number(picture.dataset.step);
    const [before, state] = momentsOf(picture.dataset.run).slice(step - 1);
    picture.replaceChildren(...partitionsOf(state).map((partition) => {
      const made = document.createElement("div");
      made.className = "partition";
      made.append(caption(state, partition), draw(state, before, partition, words));
      return made;
    }));
  }

  /** A picture that is too wide is scrolled by keys, too. */
  function makeScrollable() {
    for (const part of document.querySelectorAll(".partition")) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
      else part.removeAttribute("tabindex");
    }
  }

  // -- which alternative is beside it ---------------------------------------------------------------

  const choices = document.querySelectorAll("input[name=beside]");

  function choose(number) {
    for (const part of document.querySelectorAll("[data-instead]")) {
      part.hidden = part.dataset.instead !== number;
    }
    makeScrollable();
  }

  for (const choice of choices) {
    choice.addEventListener("change", () => choose(choice.value));
    if (choice.checked) choose(choice.value);
  }
  makeScrollable();
  window.addEventListener("resize", makeScrollable);

  // -- keys -----------------------------------------------------------------------------------------

  const steps = [...document.querySelectorAll(".step")];

  function current() {
    const focused = document.activeElement?.closest(".step");
    return steps.findIndex((step) => (focused ? step === focused : `#${step.id}` === location.hash));
  }

  steps[current()]?.scrollIntoView(); // The pictures have moved what the address names.

  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const isTaken = event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, .partition");
    if (!by || isTaken) return;
    const next = steps[Math.min(steps.length - 1, Math.max(0, current() + by))];
    location.replace(`#${next.id}`);
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
    event.preventDefault();
  });
})();
