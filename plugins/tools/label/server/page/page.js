// The page on which people label images. It talks to the server that it came from and to nobody else.
// An image is left only when the server has written the answer to it.
"use strict";

const find = id => document.getElementById(id);
const AHEAD = 3;                // images that are loaded before they are needed
const KEYS = "1234567890";      // of the first classes
const queue = [];               // {id, name, source, together, labels, suggestion, url}
let current = null;             // one of them
let chosen = new Set();         // labels of the current one, where it may have several
let apart = new Set();          // its near duplicates that get another answer
let state = null;               // what the server says of all images
let busy = false;
let reviewing = false;          // whether images are shown that were set aside
const seen = new Set();         // those of them that were shown
let lookAgain = false;          // whether the server looks for new images in the folder
let understood = 0;             // notes on the table that were read
let token = sessionStorage.getItem("token") || "";

if (location.hash.startsWith("#token=")) {
  token = decodeURIComponent(location.hash.slice("#token=".length));
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}
const client = sessionStorage.getItem("client")
  || [...crypto.getRandomValues(new Uint8Array(12))].map(each => each.toString(16).padStart(2, "0")).join("");
sessionStorage.setItem("client", client);

const percent = p => p >= 0.995 && p < 1 ? ">99%" : `${Math.round(100 * p)}%`;

function tell(words) {
  find("problem").textContent = words;
  find("problem").hidden = !words;
}

function say(words) { find("said").textContent = words; }

// -- the server --

class Refused extends Error {
  constructor(words, status) { super(words); this.status = status; }
}

async function ask(address, content, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (content) headers["Content-Type"] = "application/json";
  let answered;
  try {
    const body = content && JSON.stringify(content);
    answered = await fetch(address, { method: content ? "POST" : "GET", body, headers, ...options });
  } catch {
    throw new Refused("The server does not answer. Is it still running?", 0);
  }
  if (answered.status === 401) {
    find("gate").hidden = false;
    find("work").hidden = true;
    find("token").focus();
    throw new Refused(token ? "The token is wrong." : "", 401);
  }
  if (!answered.ok) {
    const found = await answered.json().catch(() => ({}));
    throw new Refused(found.error || `The server answered ${answered.status}.`, answered.status);
  }
  return options.raw ? answered.blob() : answered.json();
}

const person = () => find("person").value.trim();
const held = () => [current, ...queue].filter(Boolean).flatMap(each => [each.id, ...each.together]);

async function load(image) {
  const side = Math.min(1600, Math.max(400, Math.round(Math.max(innerWidth, innerHeight) * devicePixelRatio)));
  image.url = URL.createObjectURL(await ask(`image/${image.id}?side=${side}`, null, { raw: true }));
}

let filling = null;
function fill() { return filling ||= fillQueue().finally(() => { filling = null; }); }

async function fillQueue() {
  const count = AHEAD - queue.length;
  if (count < 1) return;
  const content = { client, person: person(), holding: held(), count, look_again: lookAgain, ...(reviewing && { reviewed: [...seen] }) };
  const answered = await ask(reviewing ? "unsure" : "next", content);
  lookAgain = false;
  learn(answered.progress);
  for (const image of answered.images) {
    try {
      await load(image);
      if (reviewing) seen.add(image.id);
      queue.push(image);
    } catch (error) {
      if (error.status !== 422) throw error;   // cannot be read: the server offers it no more
      tell(`${error.message} It is left out.`);
    }
  }
}

// -- what is on the screen --

async function show(image = null) {
  if (current?.url && current !== image) URL.revokeObjectURL(current.url);
  current = image || queue.shift() || null;
  if (!current) {
    await fill();
    current = queue.shift() || null;
  }
  find("work").hidden = !current;
  find("done").hidden = Boolean(current);
  if (!current) return finished();
  apart = new Set();
  chosen = new Set(current.labels);
  find("image").src = current.url;
  find("image").alt = `Image ${current.name}`;
  find("name").textContent = current.name;
  find("why").textContent = WHY[current.source] || "";
  const present = current.labels.length ? `Its label at present: ${current.labels.join(", ")}` : "";
  find("present").textContent = present;
  find("present").hidden = !present;
  if (state.several && !current.labels.length && showsSuggestion()) chosen = new Set(current.suggestion.labels);
  suggest();
  classes();
  near();
  fill().catch(error => tell(error.message));
}

const WHY = {
  random: "drawn at random",
  representative: "typical of many others",
  uncertain: "hard to predict",
  finding: "a finding of the inspection",
  "near duplicate": "like an image that was answered",
};

const showsSuggestion = () => find("show").checked && Boolean(current?.suggestion);

function suggest() {
  const given = current?.suggestion, known = showsSuggestion();
  find("suggestion").hidden = !known;
  find("hints").hidden = !state.suggests;
  if (!known) return;
  find("suggested").textContent = given.labels.join(", ") || "none of them";
  find("sure").textContent = percent(given.probability);
  find("accept").hidden = state.several;
}

function classes() {
  const typed = find("typed").value.trim().toLowerCase();
  const listed = state.classes.filter(each => each.name.toLowerCase().includes(typed));
  find("classes").replaceChildren(...listed.map((each, place) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const key = document.createElement("kbd"), name = document.createElement("span"), count = document.createElement("small");
    const digit = typed ? "" : KEYS[place] || "";
    key.textContent = digit;
    key.hidden = !digit;
    name.textContent = each.name;
    count.textContent = each.images;
    count.title = `${each.images} images`;
    button.type = "button";
    if (state.several) button.setAttribute("aria-pressed", String(chosen.has(each.name)));
    button.append(key, name, count);
    button.addEventListener("click", () => choose(each.name));
    if (typed && !place) item.className = "first";
    item.append(button);
    return item;
  }));
  const isNew = typed && !state.classes.some(each => each.name.toLowerCase() === typed);
  find("add").disabled = !isNew;
  find("typed-label").textContent = state.classes.length ? "Find or add a class" : "Type the name of a first class";
  find("save").hidden = !state.several;
}

async function near() {
  const image = current;
  find("near").hidden = !image.together.length;
  find("near-title").textContent = `${image.together.length} near ${image.together.length === 1 ? "duplicate" : "duplicates"}`;
  find("strip").replaceChildren(...image.together.map((id, place) => {
    const item = document.createElement("li"), button = document.createElement("button"), picture = document.createElement("img");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.setAttribute("aria-label", `Near duplicate ${place + 1} gets the same answer`);
    picture.alt = "";
    button.append(picture);
    button.addEventListener("click", () => {
      apart.has(id) ? apart.delete(id) : apart.add(id);
      button.setAttribute("aria-pressed", String(!apart.has(id)));
    });
    item.append(button);
    ask(`image/${id}?side=160`, null, { raw: true }).then(blob => {
      picture.src = URL.createObjectURL(blob);
      picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
    }).catch(() => { apart.add(id); item.hidden = true; });
    return item;
  }));
}

function learn(progress) {
  state = progress;
  document.title = `${state.folder}: ${state.labeled} of ${state.images}`;
  find("folder").textContent = `Label ${state.folder}`;
  find("table").textContent = state.table;
  find("where").hidden = false;
  find("person").placeholder = state.usual_name;
  find("bar").max = Math.max(1, state.images);
  find("bar").value = state.labeled;
  const extra = [[state.unsure, "set aside"], [state.skipped, "skipped"], [state.unreadable, "unreadable"]];
  const more = extra.filter(([count]) => count).map(([count, words]) => `, ${count} ${words}`).join("");
  find("counts").textContent = `${state.labeled} of ${state.images} images labelled${more}`;
  find("order").textContent = `Order: ${state.order}`;
  find("noted").textContent = state.notes.slice(understood).join(". ");
  find("note").hidden = understood >= state.notes.length;
  const right = state.agreement;
  find("agreement").textContent = right
    ? `Suggestions were right for ${right.right} of ${right.n} images drawn at random: ${percent(right.value)} (95% interval ${percent(right.low)} to ${percent(right.high)}).` : "";
  if (current) classes();
}

function finished() {
  const aside = reviewing ? 0 : state.unsure;
  const which = aside ? "Every other image" : state.unreadable ? "Every image that can be read" : "Every image";
  find("done-title").textContent = `${which} has an answer.`;
  find("done-words").textContent = `${state.labeled} of ${state.images} images are labelled${aside ? `, ${aside} ${aside === 1 ? "is" : "are"} set aside` : ""}.`;
  find("review").hidden = !aside;
  reviewing = false;
}

// -- answers --

async function send(verdict, labels = []) {
  if (busy || !current) return;
  busy = true;
  const image = current;
  const ids = [image.id, ...image.together.filter(id => !apart.has(id))];
  const content = { client, person: person(), ids, verdict, labels, saw_suggestion: showsSuggestion() };
  try {
    const answered = await written(content);
    tell("");
    say(`${image.name}: ${verdict === "label" ? labels.join(", ") || "none of them" : verdict}`);
    find("typed").value = "";
    learn(answered.progress);
    await show();
  } catch (error) {
    tell(error.message);
    if (error.status === 409) await show();
  } finally { busy = false; }
}

async function written(content) {
  for (;;) {
    try { return await ask("answer", content); } catch (error) {
      if (error.status) throw error;
      tell(`${error.message} The answer is sent again until it does.`);
      await new Promise(done => setTimeout(done, 1500));
    }
  }
}

function choose(name) {
  if (!state.several) return send("label", [name]);
  chosen.has(name) ? chosen.delete(name) : chosen.add(name);
  classes();
}

const save = () => state.several && send("label", [...chosen]);

function accept() {
  if (state.several) return save();
  if (showsSuggestion()) send("label", current.suggestion.labels);
}

async function undo() {
  if (busy) return;
  busy = true;
  try {
    const answered = await ask("undo", { client, person: person(), holding: held() });
    learn(answered.progress);
    const [image, ...others] = answered.images;
    if (!image) return say("There is no answer to take back.");
    image.together = others.map(each => each.id);
    await load(image);
    if (current) queue.unshift(current);
    for (const left of queue.splice(AHEAD)) URL.revokeObjectURL(left.url);   // the next request lets them go
    current = null;
    tell("");
    await show(image);
    say(`${answered.taken_back} was taken back.`);
  } catch (error) { tell(error.message); } finally { busy = false; }
}

async function add(name) {
  try {
    const answered = await ask("classes", { name });
    tell("");
    find("typed").value = "";
    learn(answered.progress);
    if (current) await choose(answered.name);
  } catch (error) { tell(error.message); }
}

async function begin() {
  try {
    learn(await ask("progress"));
    find("gate").hidden = true;
    tell("");
    await show();
  } catch (error) { tell(error.message); }
}

// -- keys, clicks and forms --

const ACTIONS = {
  u: () => send("unsure"), s: () => send("skip"), z: undo, Backspace: undo, Enter: accept,
  h: () => find("show").click(), "/": () => find("typed").focus(),
};

document.addEventListener("keydown", event => {
  if (event.altKey || event.metaKey || (event.ctrlKey && event.key !== "z")) return;
  const isTyping = event.target.matches("input[type=text], input[type=password]");
  if (event.key === "Escape" && isTyping) return event.target.blur();
  if (isTyping || !state || (!current && event.key !== "z")) return;
  if (event.key === "Enter" && event.target.matches("button, a")) return;
  const place = KEYS.indexOf(event.key);
  if (place >= 0 && state.classes[place]) choose(state.classes[place].name);
  else if (ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key]) ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key]();
  else return;
  event.preventDefault();
});
find("typed").addEventListener("input", classes);
find("new").addEventListener("submit", event => {
  event.preventDefault();
  const typed = find("typed").value.trim().toLowerCase();
  if (!typed) return;
  const listed = state.classes.filter(each => each.name.toLowerCase().includes(typed));
  const same = listed.find(each => each.name.toLowerCase() === typed);
  if (event.submitter === find("add") && !same) add(find("typed").value);
  else if (same || listed.length) { find("typed").value = ""; choose((same || listed[0]).name); }
  else add(find("typed").value);
  find("typed").blur();
});
find("unsure").addEventListener("click", () => send("unsure"));
find("skip").addEventListener("click", () => send("skip"));
find("undo").addEventListener("click", undo);
find("undo-last").addEventListener("click", undo);
find("accept").addEventListener("click", accept);
find("save").addEventListener("click", save);
find("understood").addEventListener("click", () => { understood = state.notes.length; find("note").hidden = true; });
find("again").addEventListener("click", () => { lookAgain = true; show().catch(error => tell(error.message)); });
find("review").addEventListener("click", () => { reviewing = true; seen.clear(); show().catch(error => tell(error.message)); });
find("show").checked = localStorage.getItem("suggestions") !== "hidden";
find("show").addEventListener("change", () => {
  localStorage.setItem("suggestions", find("show").checked ? "shown" : "hidden");
  suggest();
});
find("person").value = localStorage.getItem("person") || "";
find("person").addEventListener("change", () => localStorage.setItem("person", person()));
find("image").addEventListener("load", event => {
  event.target.className = event.target.naturalWidth < 160 && event.target.naturalHeight < 160 ? "tiny" : "";
});
find("gate").addEventListener("submit", event => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("token", token);
  begin();
});
setInterval(() => {   // images stay this person's while they are on the screen
  if (state && held().length) ask("next", { client, person: person(), holding: held(), count: 0 }).catch(error => tell(error.message));
}, 60_000);
addEventListener("pagehide", () => {
  if (state) ask("next", { client, person: person(), holding: [], count: 0 }, { keepalive: true }).catch(() => {});
});

begin();
