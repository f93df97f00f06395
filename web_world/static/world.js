"use strict";

const LOOK_MILLISECONDS = 1000;
const STATES = { ready: "ready", busy: "working", away: "owner is here", draining: "leaving" };
const number = new Intl.NumberFormat("en");
const element = (id) => document.getElementById(id);

function cell(text, className) {
  const made = document.createElement("td");
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function row(mac) {
  const made = document.createElement("tr");
  const state = cell(STATES[mac.state] ?? mac.state, "state");
  state.dataset.state = mac.state;
  made.append(
    cell(mac.label),
    cell(mac.chip),
    cell(`${number.format(mac.lent_gib)} of ${number.format(mac.memory_gib)} GiB`, "number"),
    cell(mac.models.join(", ") || "none yet"),
    state,
  );
  return made;
}

function show(snapshot) {
  element("total-macs").textContent = number.format(snapshot.macs.length);
  element("total-busy").textContent = number.format(snapshot.macs.filter((mac) => mac.state === "busy").length);
  element("total-jobs").textContent = number.format(snapshot.jobs_ended);
  element("total-tokens").textContent = number.format(snapshot.tokens_relayed);
  element("macs").replaceChildren(...snapshot.macs.map(row));
  element("empty").hidden = snapshot.macs.length > 0;
}

async function look() {
  try {
    const answer = await fetch("/world/v1/snapshot.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    show(await answer.json());
    element("stale").hidden = true;
  } catch {
    element("stale").hidden = false;
  }
  setTimeout(look, LOOK_MILLISECONDS);
}

look();
