// Draws a partition at one moment: replicas as rows, records as cells, marks at offsets.
//
// `suwiLab.add` adds an event of a recording (docs/lab.md) to a state, `suwiLab.draw` makes an SVG of
// a state: small, or as a close-up with what replicas send each other and remember. `panelOf` is the
// close-up with the controller above and the clients below. Pages of recordings and the page of a
// live partition in the console use it.
"use strict";

(() => {
  const MARKS = ["log_start", "last_stable", "high_watermark", "end"];
  const NAMES = { log_start: "start", last_stable: "LSO", high_watermark: "HW", end: "end" };
  const KEPT = ["high_watermark", "last_stable", "log_start", "epochs", "segments", "producers"];
  const COLUMNS_MAX = 60;
  const CELL_WIDTH = 64;
  const DENSE_WIDTH = 48;
  const CELL_HEIGHT = 40;
  const FOLD_WIDTH = 72;
  const TRACK_WIDTH = 9;
  const LABEL_WIDTH = 106;
  const LABEL_TOP = 60;
  const LINES_MAX = 4; // Of each client.
  const ZOOM_MAX = 1.3;
  const ROOM_MIN = 560; // Of a picture that is drawn larger.
  const PRODUCERS_MAX = 3; // The last ones of a replica, as the epochs.
  const EPOCHS_MAX = 4;

  // -- the sum of events, as suwi/lab/events.py has it ---------------------------------------------

  const newState = () => ({
    at_s: 0, partitions: {}, down: {}, frozen: {}, cuts: [], controller: {},
    clients: {}, groups: {}, transactions: {}, harm: [],
  });
  const newPartition = () => ({ replicas: {}, followers: {}, messages: {}, inSync: [] });
  const newReplica = () => ({
    end: 0, high_watermark: 0, last_stable: 0, log_start: 0, epochs: [], segments: [], producers: [], batches: [],
  });

  /** So that adding events to the copy does not change the state. */
  function copyOf(state) {
    const partitions = Object.entries(state.partitions).map(([name, partition]) => [name, {
      ...partition,
      replicas: Object.fromEntries(Object.entries(partition.replicas).map(([broker, view]) =>
        [broker, { ...view, batches: [...view.batches] }])),
      followers: { ...partition.followers },
      messages: { ...partition.messages },
    }]);
    const { down, frozen, clients, groups, transactions } = state;
    return {
      ...state, partitions: Object.fromEntries(partitions), down: { ...down }, frozen: { ...frozen },
      clients: { ...clients }, groups: { ...groups }, transactions: { ...transactions },
    };
  }

  const replicaOf = (partition, event) => (partition.replicas[event.broker] ??= newReplica());

  function tell(state, client, line) {
    state.clients[client] = [...(state.clients[client] ?? []), line].slice(-LINES_MAX);
  }

  /** Nothing is on its way any more to or from a broker whose process ends. */
  function endProcess(state, broker) {
    for (const partition of Object.values(state.partitions)) {
      const left = Object.entries(partition.messages).filter(([follower, { leader }]) =>
        Number(follower) !== broker && leader !== broker);
      partition.messages = Object.fromEntries(left);
      if (partition.leader === broker) partition.proposed = undefined;
    }
  }

  function addFault(state, { broker, what }) {
    const [verb, one, way, other] = what.split(" ");
    if (broker !== undefined) {
      const isDown = ["the process ends", "the machine loses power", "the broker does not answer"].includes(what);
      if (isDown || ["the process starts", "the broker answers again"].includes(what)) {
        state.down[broker] = isDown;
        state.frozen[broker] = false;
        endProcess(state, broker);
      }
    } else if (verb === "cut") {
      state.cuts = [...state.cuts, `${one} ${other}`, ...(way === "<->" ? [`${other} ${one}`] : [])];
    } else if (verb === "heal") {
      state.cuts = one ? state.cuts.filter((cut) => ![`${one} ${way}`, `${way} ${one}`].includes(cut)) : [];
    } else if (verb === "freeze" || verb === "thaw") {
      state.frozen[one.slice(1)] = verb === "freeze";
    }
  }

  function addMessage(state, event, partition) {
    partition.messages[event.broker] = event;
  }

  const ADD = {
    replica(state, event, partition) {
      if (event.is_removed) {
        delete partition.replicas[event.broker];
        return;
      }
      const view = replicaOf(partition, event);
      for (const name of KEPT) view[name] = event[name] ?? view[name];
      view.end = event.offset ?? view.end;
      view.batches.push(...(event.appended ?? []));
    },
    truncation(state, event, partition) {
      const view = replicaOf(partition, event);
      view.batches = view.batches.filter(([, last]) => last < event.offset);
      view.end = event.offset;
      view.high_watermark = Math.min(view.high_watermark, view.end);
      view.last_stable = Math.min(view.last_stable, view.end);
    },
    election(state, event, partition) {
      const { broker, epoch, reason } = event;
      if (!partition) {
        state.controller = { broker, epoch };
        return;
      }
      const isLed = reason !== "the partition is deleted";
      Object.assign(partition, { isLed, leader: broker, epoch, proposed: undefined, followers: {} });
    },
    "in-sync"(state, { members = [], is_confirmed: isConfirmed }, partition) {
      if (isConfirmed) partition.inSync = members;
      const isSame = [...members].sort().join() === [...partition.inSync].sort().join();
      partition.proposed = isConfirmed || isSame ? undefined : members;
    },
    follower(state, { broker, follower, offset, caught_up_s: caughtUp }, partition) {
      if (broker === partition.leader) partition.followers[follower] = { offset, caughtUp };
    },
    fetch: addMessage,
    "fetch-answer": addMessage,
    send(state, event) {
      tell(state, event.client, { ...event, isOpen: true });
    },
    "send-result"(state, { client, number, offset, error, times = 1 }) {
      const isResultOf = (line) => line.isOpen && (line.number === number || (times > 1 && line.number <= number));
      state.clients[client] = state.clients[client]?.map((line) =>
        (isResultOf(line) ? { ...line, isOpen: false, offset, error } : line));
    },
    told(state, { client, what }) {
      tell(state, client, { what });
    },
    group(state, event) {
      state.groups[event.group] = event;
    },
    transaction(state, event) {
      state.transactions[event.transactional_id] = event;
    },
    fault: addFault,
    loss(state, event) {
      state.harm = [...state.harm, event];
    },
    violation(state, event) {
      state.harm = [...state.harm, event];
    },
  };

  function add(state, event) {
    state.at_s = event.at_s ?? 0;
    const partition = event.partition && (state.partitions[event.partition] ??= newPartition());
    ADD[event.kind]?.(state, event, partition);
  }

  /** The states at the start and at the end of each step. */
  function moments(events) {
    const state = newState();
    const found = [copyOf(state)];
    for (const event of events) {
      add(state, event);
      if (event.kind === "result") found.push(copyOf(state));
    }
    return found;
  }

  /** The partitions to draw: no internal ones, and of several those with records. */
  function partitionsOf(state) {
    const own = Object.entries(state.partitions).filter(([name, { isLed, replicas }]) =>
      isLed && !name.startsWith("__") && Object.keys(replicas).length > 0);
    const isWritten = ([, { replicas }]) => Object.values(replicas).some(({ end }) => end > 0);
    return (own.length > 1 ? own.filter(isWritten) : own).map(([name]) => name);
  }

  // -- words ---------------------------------------------------------------------------------------

  const brokers = (members, words) => members.map((broker) => `b${broker}`).join(" ") || words.none;
  const known = (broker) => (broker === undefined ? [] : [broker]);
  const filled = (text, ...values) => values.reduce((made, value) => made.replace("{}", () => value), text);
  const seconds = (value) => String(Number(value.toFixed(value < 10 ? 3 : 1)));

  function standing(state, partition, broker) {
    const { leader, inSync } = state.partitions[partition];
    if (state.down[broker]) return "down";
    if (leader === broker) return "leader";
    return inSync.includes(broker) ? "in sync" : "behind";
  }

  /** For how long a follower has not had everything, as its leader sees it. */
  function lagText(state, partition, broker, words) {
    const { leader, followers, replicas } = state.partitions[partition];
    const seen = followers[broker];
    if (!seen || broker === leader || state.down[leader]) return "";
    if (seen.offset >= replicas[leader]?.end) return words["caught up"];
    if (seen.caughtUp === undefined) return words["not caught up"];
    return filled(words["behind for"], seconds(state.at_s - seen.caughtUp));
  }

  /** What is on its way between a follower and its leader. After an answer without records and
      without an error the follower has asked again: recordings leave out what is like the last. */
  function messageOf(state, partition, broker, now = []) {
    const message = state.partitions[partition].messages[broker];
    if (!message || state.partitions[partition].leader === broker) return undefined;
    const isNow = now.includes(message);
    const isAnswer = message.kind === "fetch-answer";
    if (isAnswer && !isNow && (message.size_bytes || message.error || message.diverging)) return undefined;
    const ends = [`b${broker} b${message.leader}`, `b${message.leader} b${broker}`];
    return {
      ...message,
      isNow,
      isAnswer: isAnswer && isNow,
      isCut: ends.some((link) => state.cuts.includes(link)),
    };
  }

  function messageText({ isAnswer, offset, high_watermark: watermark, size_bytes: size, error, diverging }, words) {
    if (!isAnswer) return filled(words.fetches, offset);
    if (error) return error.toLowerCase().replaceAll("_", " ");
    if (diverging) return filled(words.diverging, diverging[1]);
    return size ? filled(words.records, watermark) : `HW ${watermark}`;
  }

  const producerText = ([id, epoch, sequence, open], words) => filled(words["producer state"], id, epoch)
    + (sequence < 0 ? "" : filled(words.sequence, sequence)) + (open < 0 ? "" : filled(words.open, open));

  function memoryTexts(view, words) {
    const epochs = view.epochs.slice(-EPOCHS_MAX).map(([epoch, start]) => filled(words.since, epoch, start)).join(", ");
    return [
      [words.epochs, epochs || words.none],
      ...view.producers.slice(-PRODUCERS_MAX).map((each) => [words.producer, producerText(each, words)]),
    ];
  }

  /** The picture in words, for those who do not see it. */
  function describe(state, partition, rows, words, now) {
    const { leader, epoch, inSync } = state.partitions[partition];
    const facts = `${words.leader} ${brokers(known(leader), words)}, ${words.epoch} ${epoch}, `
      + `${words["in sync"]} ${brokers(inSync, words)}`;
    const replicas = rows.map(({ broker, view, cells }) => {
      const held = cells.filter(({ kind }) => kind !== "gone").slice(-12).map(({ batch }) =>
        `${batch[0]} "${textOf(batch)}" ${words.epoch} ${batch[2]}`).join(", ") || words.none;
      const message = messageOf(state, partition, broker, now);
      const rest = [lagText(state, partition, broker, words), message && messageText(message, words)];
      return [`b${broker} ${words[standing(state, partition, broker)]}: ${held}; `
        + `${words["high watermark"]} ${view.high_watermark}, ${words.end} ${view.end}`, ...(now ? rest : [])]
        .filter(Boolean).join("; ");
    });
    return `${partition}: ${facts}. ${replicas.join(". ")}`;
  }

  // -- one moment ----------------------------------------------------------------------------------

  /** The log by leader epoch: what is known of it where batches are not. */
  function rangesOf({ log_start: start, end, epochs }) {
    return epochs.map(([epoch, from], index) =>
      [Math.max(start, from), (epochs[index + 1]?.[1] ?? end) - 1, epoch]).filter(([first, last]) => first <= last);
  }

  /** Ranges that a replica has, parted at the high watermark, and those that it has lost. */
  function rangeCells(view, before) {
    const now = rangesOf(view);
    const ends = new Map(now.map(([, last, epoch]) => [epoch, last]));
    const gone = rangesOf(before).map(([first, last, epoch]) => [Math.max(first, (ends.get(epoch) ?? -1) + 1), last, epoch])
      .filter(([first, last]) => first <= last && first >= view.log_start);
    const watermark = view.high_watermark;
    const parted = now.flatMap(([first, last, epoch]) => (first < watermark && watermark <= last
      ? [[first, watermark - 1, epoch], [watermark, last, epoch]]
      : [[first, last, epoch]]));
    return [
      ...gone.map((batch) => ({ batch, kind: "gone" })),
      ...parted.map((batch) => ({ batch, kind: batch[0] < watermark ? "committed" : "uncommitted" })),
    ];
  }

  /** What a replica has, and what it has lost since `before`. */
  function cellsOf(view, before) {
    if (!view.batches.length && !before.batches.length) return rangeCells(view, before);
    const isHeld = ([, last]) => last >= view.log_start;
    const key = (batch) => batch.join("|");
    const known = new Set(before.batches.map(key));
    const held = view.batches.filter(isHeld);
    const now = new Set(held.map(key));
    const gone = before.batches.filter((batch) => batch[1] >= before.log_start && !now.has(key(batch)));
    return [
      ...gone.map((batch) => ({ batch, kind: "gone" })),
      ...held.map((batch) => ({
        batch,
        kind: batch[0] < view.high_watermark ? "committed" : "uncommitted",
        isNew: !known.has(key(batch)),
      })),
    ];
  }

  const textWidth = (text) => [...text].reduce((sum, c) => sum + (c > "\u2e80" ? 13.5 : 8.4), 0);
  const textOf = ([base, last, , value = ""], most = 12) => {
    const text = [...(value || (last > base ? `×${last - base + 1}` : ""))];
    return text.length > most ? text.slice(0, most - 1).join("") + "…" : text.join("");
  };

  /** Where each offset at which something begins or ends is drawn, and how long values may be. What
      does not fit is folded at the left. */
  function scale(rows, left, columns, room) {
    const cells = rows.flatMap((row) => row.cells);
    const first = Math.min(...rows.map(({ view }) => view.log_start), ...cells.map(({ batch }) => batch[0]));
    const edges = [
      ...rows.flatMap(({ view }) => [...MARKS.map((mark) => view[mark]), ...view.segments]),
      ...cells.flatMap(({ batch }) => [batch[0], batch[1] + 1]),
    ];
    const all = [...new Set(edges)].filter((offset) => offset >= first).sort((a, b) => a - b);
    const sorted = all.slice(-columns);
    const folded = sorted.length < all.length ? FOLD_WIDTH : 0;
    const isDense = sorted.length > 8 || folded > 0;
    const most = isDense ? 5 : 12;
    const wanted = new Map();
    for (const { batch } of cells) {
      const width = textWidth(textOf(batch, most)) + 14;
      wanted.set(batch[0], Math.max(wanted.get(batch[0]) ?? 0, width));
    }
    const places = new Map();
    let x = left + folded;
    sorted.forEach((offset, index) => {
      places.set(offset, x);
      const width = Math.max(isDense ? DENSE_WIDTH : CELL_WIDTH, wanted.get(offset) ?? 0);
      if (index < sorted.length - 1) x += width;
    });
    const place = (offset) => places.get(offset)
      ?? left + 4 + (folded - 8) * Math.max(0, (offset - first) / (sorted[0] - first));
    return { place, sorted, first, folded, most, left, end: Math.max(x, left + 2 * CELL_WIDTH, room - 36) };
  }

  function node(name, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function drawCell({ batch, kind, isNew }, { place, sorted, most }, y) {
    const [base, last, epoch] = batch;
    const x = place(base) + 2;
    const width = Math.max(1, place(last + 1) - x - 2);
    const middle = x + width / 2;
    const texts = last < sorted[0] ? [] : [
      node("text", { x: middle, y: y + 18, class: "value" }, textOf(batch, most)),
      node("text", { x: middle, y: y + 33, class: "epoch" }, `e${epoch}`),
    ];
    return node("g", { class: `cell e${epoch % 6} ${kind}${isNew ? " new" : ""}` },
      node("rect", { x, y, width, height: CELL_HEIGHT, rx: Math.min(5, width / 2) }), ...texts);
  }

  /** Those that are folded, as one cell for each epoch. */
  function folded(cells, first) {
    const made = [];
    for (const cell of cells) {
      const last = made.at(-1);
      const isFolded = cell.batch[1] < first && cell.kind !== "gone";
      if (isFolded && last?.batch[1] < first && last.batch[2] === cell.batch[2] && last.kind === cell.kind) {
        last.batch = [last.batch[0], cell.batch[1], cell.batch[2]];
      } else {
        made.push({ ...cell, isNew: cell.isNew && !isFolded });
      }
    }
    return made;
  }

  /** Those at one offset share a line and a label. */
  function drawMarks(view, { place, sorted, left }, y) {
    const groups = new Map();
    for (const mark of MARKS) {
      const isTold = mark === "end" || mark === "high_watermark"
        || (mark === "log_start" ? view.log_start > 0 : view.last_stable !== view.high_watermark);
      if (isTold) groups.set(view[mark], [...(groups.get(view[mark]) ?? []), mark]);
    }
    const drawn = [...groups].sort(([a], [b]) => a - b)
      .filter(([offset, marks]) => offset >= sorted[0] || !marks.includes("log_start"))
      .map(([offset, marks]) => {
        const x = place(offset);
        const text = `${marks.map((mark) => NAMES[mark]).join(" · ")} ${offset}`;
        return { x, marks, text, width: 6.6 * text.length, anchor: x === left ? "start" : "middle" };
      });
    drawn.slice(1).forEach((mark, index) => { // Labels that would overlap give way.
      const before = drawn[index];
      const end = before.x + (before.anchor === "start" ? 1 : 0.5) * before.width;
      if (end <= mark.x - mark.width / 2) return;
      mark.anchor = "start";
      if (before.anchor === "middle") before.anchor = "end";
    });
    return drawn.map(({ x, marks, text, anchor }) => node("g", { class: `mark ${marks.join(" ")}` },
      node("line", { x1: x, x2: x, y1: y - 5, y2: y + CELL_HEIGHT + 5 }),
      node("text", { x, y: y + CELL_HEIGHT + 17, "text-anchor": anchor }, text),
    ));
  }

  /** The log as its segments; the last one is open. */
  function drawSegments(view, { place, sorted, left, end }, y, words) {
    const bases = view.segments.length ? view.segments : [view.log_start];
    return bases.flatMap((base, index) => {
      const isLast = index === bases.length - 1;
      const x = index ? place(base) : left;
      const until = isLast ? end + 24 : place(bases[index + 1]);
      const name = bases.length > 1 && base >= sorted[0]
        ? [node("text", { x: x + 5, y: y - 9, class: "segment" }, filled(words.segment, base))]
        : [];
      return [node("rect", {
        class: "log", x: x + (index ? 1 : 0), y: y - 4, width: Math.max(2, until - x - (isLast ? 0 : 2)), height: CELL_HEIGHT + 8, rx: 6,
      }), ...name];
    });
  }

  /** A fetch goes from the follower's label to the leader's log, an answer into the follower's. */
  function drawMessage(message, words, { top, track, log, follower, leader }) {
    const { isAnswer, isNow, isCut } = message;
    const text = messageText(message, words) + (isCut ? ` ${words.cut}` : "");
    const kind = `message ${isAnswer ? "answer" : "asks"}${isNow ? " now" : ""}${isCut ? " cut" : ""}`;
    const to = isAnswer ? follower : leader;
    const path = (isAnswer ? `M ${log - 6} ${leader} H ${track}` : `M ${LABEL_WIDTH} ${top + 12} H ${track}`)
      + ` V ${to} H ${log - 8}`;
    return node("g", { class: kind },
      node("path", { d: path, class: "way" }),
      ...(isNow ? [node("path", { d: path, class: "moving" })] : []),
      node("path", { d: `M ${log - 3} ${to} l -8 -4.5 v 9 z`, class: "head" }),
      node("rect", { x: 1, y: top, width: LABEL_WIDTH - 1, height: 24, rx: 12 }),
      node("text", { x: LABEL_WIDTH / 2, y: top + 16 }, text),
    );
  }

  function drawMessages(state, partition, rows, words, now, { log, top, rowHeight }) {
    const middle = (index) => top + rowHeight * index + CELL_HEIGHT / 2;
    let number = 0;
    return rows.flatMap(({ broker }, index) => {
      const message = messageOf(state, partition, broker, now);
      const leader = rows.findIndex((row) => row.broker === message?.leader);
      if (leader < 0) return [];
      number += 1;
      return [drawMessage(message, words, {
        log, top: top + rowHeight * index + LABEL_TOP, track: LABEL_WIDTH + TRACK_WIDTH * number,
        follower: middle(index), leader: middle(leader) + 9 * (number - 1) - 8,
      })];
    });
  }

  function drawMemory(view, words, x, y) {
    return memoryTexts(view, words).map(([name, text], line) =>
      node("text", { x, y: y + 16 * line, class: "memory" }, node("tspan", { class: "name" }, `${name} `), text));
  }

  function drawAxis({ place, sorted, first, folded: isFolded, left }, words) {
    const made = [node("text", { x: 0, y: 14, class: "axis" }, words.offset)];
    if (isFolded) made.push(node("text", { x: left + FOLD_WIDTH / 2, y: 14, class: "axis middle" }, `${first}–${sorted[0] - 1}`));
    sorted.slice(0, -1).forEach((offset, index) => {
      const next = sorted[index + 1];
      const x = (place(offset) + place(next)) / 2;
      made.push(node("text", { x, y: 14, class: "axis middle" }, next - offset > 1 ? `${offset}–${next - 1}` : `${offset}`));
    });
    return made;
  }

  /** An SVG of a partition. What is different from the state `before` is marked. As a close-up, if
      `now`, the events of the moment, are given; then it is as wide as `room` if possible, and older
      records are folded. */
  function draw(state, before, partition, words, { now, room = 0 } = {}) {
    const { replicas } = state.partitions[partition];
    const rows = Object.keys(replicas).map(Number).map((broker) => {
      const view = replicas[broker];
      const old = before.partitions[partition]?.replicas[broker];
      return { broker, view, cells: cellsOf(view, old ?? newReplica()) };
    });
    const memory = now ? Math.max(...rows.map(({ view }) => memoryTexts(view, words).length)) : 0;
    const rowHeight = now ? 88 + 16 * memory : 70;
    const log = now ? LABEL_WIDTH + TRACK_WIDTH * rows.length + 22 : 76;
    const columns = now ? Math.max(4, Math.floor((room - log - FOLD_WIDTH - 36) / (DENSE_WIDTH + 9)) + 1) : COLUMNS_MAX;
    const scaled = scale(rows, log, columns, room);
    const width = scaled.end + 36;
    const top = now ? 40 : 26;
    const height = top + rowHeight * rows.length;
    const made = node("svg", {
      width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": describe(state, partition, rows, words, now),
    }, ...drawAxis(scaled, words));
    rows.forEach(({ broker, view, cells }, index) => {
      const y = top + rowHeight * index;
      const role = standing(state, partition, broker);
      const roleText = state.frozen[broker] ? words.frozen : words[role];
      const isActive = now?.some((event) => event.broker === broker);
      const kind = `replica ${role.replace(" ", "-")}${isActive ? " active" : ""}`;
      made.append(node("g", { class: kind, "data-broker": broker },
        node("text", { x: 0, y: y + 17, class: "broker" }, `b${broker}`),
        node("text", { x: 0, y: y + 34, class: "role" }, roleText),
        ...(now ? [node("text", { x: 0, y: y + 51, class: "lag" }, lagText(state, partition, broker, words))] : []),
        ...drawSegments(view, scaled, y, words),
        ...folded(cells, scaled.sorted[0]).map((cell) => drawCell(cell, scaled, y)),
        ...drawMarks(view, scaled, y),
        ...(now ? drawMemory(view, words, log, y + CELL_HEIGHT + 35) : []),
      ));
    });
    if (now) made.append(...drawMessages(state, partition, rows, words, now, { log, top, rowHeight }));
    return made;
  }

  // -- the panel of one moment ---------------------------------------------------------------------

  function made(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const chip = (tag, broker) => made(tag, { class: "chip" }, `b${broker}`);

  function controllerOf(state, partition, words) {
    const { leader, epoch, inSync = [], proposed } = state.partitions[partition] ?? {};
    const { broker, epoch: controllerEpoch } = state.controller;
    const part = (name, ...children) => made("div", {}, made("dt", {}, name), made("dd", {}, ...children));
    const numbered = controllerEpoch === undefined ? "" : `, ${words["controller epoch"]} ${controllerEpoch}`;
    const list = made("dl", { class: "controller" },
      part(words.controller, broker === undefined ? words.none : `b${broker}${numbered}`),
      part(words.leader, brokers(known(leader), words), epoch === undefined ? "" : `, ${words.epoch} ${epoch}`),
      part(words.confirmed, ...(inSync.length ? inSync.map((each) => chip("span", each)) : [words.none])),
    );
    if (proposed) {
      const all = [...new Set([...inSync, ...proposed])].sort((a, b) => a - b);
      list.append(part(words.proposed, ...all.map((each) =>
        chip(!proposed.includes(each) ? "del" : inSync.includes(each) ? "span" : "ins", each))));
      list.lastChild.className = "proposed";
    }
    return list;
  }

  /** What was sent; of a live cluster values are not known. */
  function sentText({ values = [], records, times = 1 }, words) {
    if (records === undefined) return values.map((value) => `"${value}"`).join(" ");
    if (times > 1) return filled(words["some batches"], records, times);
    return filled(words[records === 1 ? "one record" : "one batch"], records);
  }

  function lineOf(line, client, words) {
    const { what, acks, isOpen, offset, error } = line;
    if (what !== undefined) {
      return made("li", {}, what.startsWith(client) ? what.slice(client.length).replace(/^:? /, "") : what);
    }
    const [kind, outcome] = isOpen ? ["waits", words.waits]
      : error ? ["refused", `✗ ${error}`]
        : ["acknowledged", offset === undefined ? words.unanswered : filled(words.acknowledged, offset)];
    return made("li", { class: kind }, `${sentText(line, words)} acks=${acks} `, made("b", {}, outcome));
  }

  function clientsOf({ clients, groups, transactions }, words) {
    const cards = Object.entries(clients).filter(([, lines]) => lines?.length).map(([client, lines]) =>
      made("section", {}, made("h3", {}, client), made("ul", {}, ...lines.map((line) => lineOf(line, client, words)))));
    const others = [
      ...Object.values(groups).map(({ group, state, members, epoch }) =>
        [words.group, group, filled(words["group state"], state, members, epoch)]),
      ...Object.values(transactions).map(({ transactional_id: id, state, epoch, producer_id: producer }) =>
        [words.transaction, id, filled(words["transaction state"], state, producer, epoch)]),
    ];
    return made("div", { class: "clients" }, ...cards, ...others.map(([kind, name, told]) =>
      made("section", {}, made("h3", {}, `${kind} ${name}`), made("ul", {}, made("li", {}, told)))));
  }

  function harmOf({ harm }, words, textOfHarm) {
    const items = harm.slice(-4).map((event) =>
      made("li", { class: event.kind }, `${words[event.kind]}: ${textOfHarm(event)}`));
    return made("ul", { class: "harm" }, ...items);
  }

  function pictureOf(state, before, partition, words, now, space) {
    const frame = made("div", { class: "partition" });
    if (!Object.keys(state.partitions[partition]?.replicas ?? {}).length) {
      frame.append(made("p", { class: "soft" }, words["no replica"]));
      return frame;
    }
    const zoom = Math.max(1, Math.min(ZOOM_MAX, space / ROOM_MIN));
    const svg = draw(state, before, partition, words, { now, room: space / zoom });
    for (const side of ["width", "height"]) svg.setAttribute(side, zoom * svg.getAttribute(side));
    frame.append(svg);
    return frame;
  }

  /** The elements of one moment: `now` are its events, `before` the state before them, `space` how
      wide it may be. */
  function panelOf(state, before, partition, words, { now, space, textOfHarm }) {
    return [
      controllerOf(state, partition, words), harmOf(state, words, textOfHarm),
      pictureOf(state, before, partition, words, now, space), clientsOf(state, words),
    ];
  }

  window.suwiLab = { newState, copyOf, add, moments, partitionsOf, draw, panelOf, made, filled };
})();
