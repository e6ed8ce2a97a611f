// The page of a served model: images in, answers and what the model looked at out.
// It talks to the server that it came from and to nobody else.
"use strict";

const find = id => document.getElementById(id);
const images = [];      // {file, url, name, button, caption, answer}
let chosen = null;      // one of them
let view = null;        // {picture, rows, columns, covered, mean} of the chosen one
let asking = false, askAgain = false;
let token = sessionStorage.getItem("token") || "";
let inside = "inside";  // the address that answers; of a model with several labels, for all of them

const percent = p => p >= 0.9995 && p < 1 ? ">99.9%" : `${(100 * p).toFixed(1)}%`;

function tell(words) {
  find("problem").textContent = words;
  find("problem").hidden = !words;
}

// -- the server --

async function ask(address, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const method = body ? "POST" : "GET";
  let answered;
  try {
    if (body) headers["Content-Type"] = "application/octet-stream";
    answered = await fetch(address, { method, body, headers });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answered.status === 401) {
    find("gate").hidden = false;
    find("token").focus();
    throw new Error("The token is missing or wrong.");
  }
  const found = await answered.json().catch(() => ({}));
  if (!answered.ok) throw new Error(found.error || found.detail || `The server answered ${answered.status}.`);
  return found;
}

async function describe() {
  try {
    const model = await ask("status");
    find("model").textContent = `${model.model} · version ${model.version}`;
    document.title = model.model;
    const classes = model.classes.length;
    const listed = model.classes.slice(0, 12).join(", ") + (classes > 12 ? ", …" : "");
    const several = model.task === "multi_label";
    find("about").textContent = `${classes} ${several ? "labels, any number of them for an image" : "classes"}: ${listed}`;
    find("ranking").textContent = several ? "All labels; a mark shows where each begins to be given" : "Most probable classes";
    inside = several ? `inside?top_k=${classes}` : "inside";
    tell("");
  } catch (error) { tell(error.message); }
}

// -- images in --

function add(files) {
  const usable = [...files].filter(file => file.size);
  for (const file of usable) {
    const image = { file, url: URL.createObjectURL(file), name: file.name || "pasted image", answer: null };
    image.button = document.createElement("button");
    image.button.type = "button";
    const picture = document.createElement("img");
    picture.src = image.url;
    picture.alt = "";
    image.caption = document.createElement("span");
    image.caption.textContent = image.name;
    image.button.append(picture, image.caption);
    image.button.addEventListener("click", () => choose(image));
    const item = document.createElement("li");
    item.append(image.button);
    find("strip").append(item);
    images.push(image);
  }
  if (!usable.length) return;
  find("images").hidden = images.length < 2;
  choose(images[images.length - usable.length]);
  others();
}

async function others() {
  for (const image of images) {
    if (image.answer || image === chosen) continue;
    try {
      image.answer = await ask(inside, image.file);
      image.caption.textContent = named(image.answer);
    } catch (error) { image.caption.textContent = "no answer"; image.button.title = error.message; }
  }
}

async function choose(image) {
  chosen = image;
  view = null;
  tell("");
  for (const each of images) each.button.setAttribute("aria-current", String(each === image));
  find("original").src = image.url;
  find("original").alt = image.name;
  try {
    image.answer ||= await ask(inside, image.file);
    if (chosen !== image) return;
    image.caption.textContent = named(image.answer);
    show(image.answer);
    await open(image);
  } catch (error) {
    if (chosen !== image) return;
    find("answer").hidden = find("inside").hidden = true;
    tell(`${image.name}: ${error.message}`);
  }
}

// -- the answer --

function row(cells, first) {
  const line = document.createElement("tr");
  if (first) line.className = "first";
  line.append(...cells);
  return line;
}

function cell(kind, text, name) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  if (kind === "th") made.scope = "row";
  return made;
}

function bar(share, threshold) {
  const made = cell("td", "", "bar"), length = document.createElement("i");
  length.style.width = `${100 * share}%`;
  made.append(length);
  if (threshold !== undefined) {
    const mark = document.createElement("b");
    mark.style.left = `${100 * threshold}%`;
    made.append(mark);
    made.title = `given from ${percent(threshold)} on`;
  }
  return made;
}

// With several labels for each image, an answer has any number of them.
const named = answer => answer.labels
  ? answer.labels.map(each => each.label).join(", ") || "no label"
  : answer.label;
const valued = answer => answer.labels
  ? answer.labels.map(each => `${each.label} ${percent(each.probability)}`).join(", ") || "no label"
  : `${answer.label} ${percent(answer.probability)}`;
const isGiven = each => each.probability >= each.threshold;

function show(answer) {
  find("answer").hidden = false;
  find("label").textContent = named(answer);
  find("probability").textContent = answer.labels ? answer.labels.map(each => percent(each.probability)).join(", ") : percent(answer.probability);
  find("set").textContent = inSet(answer);
  // With patches covered, the image is not the one that the warnings are about.
  const warnings = view?.covered.size ? [] : answer.warnings;
  find("warnings").replaceChildren(...warnings.map(each => cell("li", each.message)));
  find("warnings").hidden = !warnings.length;
  find("unchecked").textContent = unchecked(answer);
  find("unchecked").hidden = !unchecked(answer);
  find("top").replaceChildren(...answer.top.map((each, number) =>
    row([cell("th", each.label), bar(each.probability, each.threshold), cell("td", percent(each.probability))],
      answer.labels ? isGiven(each) : !number)));
}

const KINDS = { blank: "blank", dark: "dark", blurred: "blurred", too_small: "too small", far: "unlike the training images" };

function unchecked(answer) {
  if (!answer.unchecked?.length) return "";
  return `Not checked, because the model has no limit for it: whether the image is ${answer.unchecked.map(each => KINDS[each] || each).join(", ")}.`;
}

function inSet(answer) {
  if (answer.labels) return "";
  if (!answer.set) return `There is no prediction set${answer.set_unknown ? `: ${answer.set_unknown}` : ""}.`;
  // An average over images: nothing is said of this one.
  const nominal = `Prediction set (${+(100 * answer.coverage).toFixed(1)}% nominal coverage)`;
  const unlike = answer.warnings.length ? " It was measured on images that are not like this one." : "";
  const more = answer.set.length > 8 ? `, and ${answer.set.length - 8} more` : "";
  return `${nominal}: ${answer.set.slice(0, 8).join(", ")}${more}.${unlike}`;
}

// -- inside the model --

async function open(image) {
  const answer = image.answer, block = answer.blocks && answer.blocks.find(each => each.attention);
  find("inside").hidden = !answer.seen;
  if (!answer.seen) return;
  const picture = new Image();
  picture.src = answer.seen;
  await picture.decode();
  if (chosen !== image) return;
  // Without attention there are no patches to speak of: squares of an eighth do.
  const rows = block ? block.attention.length : 8, columns = block ? block.attention[0].length : 8;
  view = { picture, rows, columns, covered: new Set(), mean: meanOf(picture), at: 0, attends: Boolean(block) };
  find("picture").width = picture.width;
  find("picture").height = picture.height;
  find("grid").style.aspectRatio = `${picture.width} / ${picture.height}`;
  const range = find("block");
  if (Number(range.max) !== answer.blocks?.length) {
    range.max = answer.blocks?.length || 1;
    range.value = range.max;
  }
  for (const id of ["block", "show"]) find(id).closest(".controls label, .controls").hidden = !block;
  find("meaning").hidden = !block;
  find("cursor").hidden = true;
  find("place").textContent = "";
  draw();
  look(answer);
}

function meanOf(picture) {
  const canvas = document.createElement("canvas");
  canvas.width = picture.width;
  canvas.height = picture.height;
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  brush.drawImage(picture, 0, 0);
  const values = brush.getImageData(0, 0, canvas.width, canvas.height).data;
  const sum = [0, 0, 0];
  for (let at = 0; at < values.length; at += 4) for (let c = 0; c < 3; c++) sum[c] += values[at + c];
  return `rgb(${sum.map(each => Math.round(4 * each / values.length)).join(" ")})`;
}

function edges(number) {
  const { picture, rows, columns } = view, r = Math.floor(number / columns), c = number % columns;
  const left = Math.round(c * picture.width / columns), right = Math.round((c + 1) * picture.width / columns);
  const top = Math.round(r * picture.height / rows), bottom = Math.round((r + 1) * picture.height / rows);
  return [left, top, right - left, bottom - top];
}

function draw() {
  const brush = find("picture").getContext("2d");
  brush.drawImage(view.picture, 0, 0);
  brush.fillStyle = view.mean;
  for (const number of view.covered) brush.fillRect(...edges(number));
  find("uncover").disabled = !view.covered.size;
}

function look(answer) {
  view.answer = answer;
  const before = chosen.answer, count = view.covered.size;
  find("now").textContent = count
    ? `${valued(answer)} with ${count} ${count === 1 ? "patch" : "patches"} covered, ${valued(before)} without`
    : valued(answer);
  const number = Number(find("block").value), heat = find("heat");
  find("block-number").textContent = number;
  const attention = answer.blocks?.[number - 1]?.attention;
  heat.hidden = !attention || !find("show").checked;
  if (attention) {
    heat.width = view.columns;
    heat.height = view.rows;
    const brush = heat.getContext("2d"), pixels = brush.createImageData(view.columns, view.rows);
    const flat = attention.flat(), most = Math.max(...flat), least = Math.min(...flat);
    flat.forEach((value, at) => {
      const share = most > least ? (value - least) / (most - least) : 0;
      pixels.data.set([255, 190 - 120 * share, 30, 215 * share], 4 * at);
    });
    brush.putImageData(pixels, 0, 0);
  }
  const readings = (answer.blocks || []).map((each, at) => [at + 1, each.reading]).filter(([, reading]) => reading);
  find("readings").hidden = !readings.length;
  find("blocks").replaceChildren(...readings.map(([block, reading]) => row(
    [cell("td", block, "number"), cell("th", reading[0].label), bar(reading[0].probability), cell("td", percent(reading[0].probability))],
    answer.labels ? answer.labels.some(each => each.label === reading[0].label) : reading[0].label === answer.label)));
}

async function askAboutCovered() {
  if (asking) { askAgain = true; return; }
  asking = true;
  const mine = view;
  try {
    let answer = chosen.answer;
    if (mine.covered.size) {
      const body = await new Promise(done => find("picture").toBlob(done, "image/png"));
      answer = await ask(inside, body);
    }
    if (view === mine) { show(answer); look(answer); }
  } catch (error) { tell(error.message); }
  asking = false;
  if (askAgain) { askAgain = false; askAboutCovered(); }
}

function cover(number, covered) {
  if (view.covered.has(number) === covered) return;
  covered ? view.covered.add(number) : view.covered.delete(number);
  draw();
  askAboutCovered();
}

function patchAt(event) {
  const box = find("grid").getBoundingClientRect();
  const c = Math.floor((event.clientX - box.left) / box.width * view.columns);
  const r = Math.floor((event.clientY - box.top) / box.height * view.rows);
  const inside = c >= 0 && r >= 0 && c < view.columns && r < view.rows;
  return inside ? r * view.columns + c : null;
}

let covering = null;    // whether the finger covers or uncovers, while it is down
find("grid").addEventListener("pointerdown", event => {
  const number = view && patchAt(event);
  if (number === null || event.button) return;
  find("grid").setPointerCapture(event.pointerId);
  covering = !view.covered.has(number);
  cover(number, covering);
});
find("grid").addEventListener("pointermove", event => {
  const number = covering === null || !view ? null : patchAt(event);
  if (number !== null) cover(number, covering);
});
for (const kind of ["pointerup", "pointercancel"]) find("grid").addEventListener(kind, () => { covering = null; });

function place() {
  const { picture } = view, [left, top, width, height] = edges(view.at), style = find("cursor").style;
  style.left = `${100 * left / picture.width}%`;
  style.top = `${100 * top / picture.height}%`;
  style.width = `${100 * width / picture.width}%`;
  style.height = `${100 * height / picture.height}%`;
  find("cursor").hidden = false;
  const r = Math.floor(view.at / view.columns) + 1, c = view.at % view.columns + 1;
  find("place").textContent = `Row ${r}, column ${c}${view.covered.has(view.at) ? ", covered" : ""}`;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
find("grid").addEventListener("keydown", event => {
  if (!view) return;
  const step = STEPS[event.key];
  if (step) {
    const r = Math.floor(view.at / view.columns) + step[0], c = view.at % view.columns + step[1];
    if (r >= 0 && c >= 0 && r < view.rows && c < view.columns) view.at = r * view.columns + c;
  } else if (event.key === " " || event.key === "Enter") cover(view.at, !view.covered.has(view.at));
  else return;
  event.preventDefault();
  place();
});
find("grid").addEventListener("focus", () => { if (view && find("grid").matches(":focus-visible")) place(); });
find("grid").addEventListener("blur", () => { find("cursor").hidden = true; });
find("block").addEventListener("input", () => look(view.answer));
find("show").addEventListener("change", () => look(view.answer));
find("uncover").addEventListener("click", () => { view.covered.clear(); draw(); askAboutCovered(); });

// -- dropping, pasting, photographing --

find("files").addEventListener("change", event => { add(event.target.files); event.target.value = ""; });
find("capture").addEventListener("change", event => { add(event.target.files); event.target.value = ""; });
document.addEventListener("dragover", event => { event.preventDefault(); find("drop").classList.add("over"); });
document.addEventListener("dragleave", event => { if (!event.relatedTarget) find("drop").classList.remove("over"); });
document.addEventListener("drop", event => {
  event.preventDefault();
  find("drop").classList.remove("over");
  if (event.dataTransfer.files.length) add(event.dataTransfer.files);
  else tell("That was no file. Save the image first, or copy and paste it.");
});
document.addEventListener("paste", event => { if (event.clipboardData.files.length) add(event.clipboardData.files); });

let stream = null;
find("take").addEventListener("click", async () => {
  const touch = matchMedia("(pointer: coarse)").matches;
  if (touch || !navigator.mediaDevices?.getUserMedia) return find("capture").click();
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch { return tell("No camera can be used here. Choose an image instead."); }
  find("video").srcObject = stream;
  find("camera").showModal();
  find("video").play();
});
find("shoot").addEventListener("click", () => {
  const video = find("video"), canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob(blob => add([new File([blob], "photo.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.92);
  find("camera").close();
});
find("leave").addEventListener("click", () => find("camera").close());
find("camera").addEventListener("close", () => { stream?.getTracks().forEach(track => track.stop()); stream = null; });

find("original").addEventListener("load", event => {
  event.target.className = event.target.naturalWidth < 160 ? "tiny" : "";
});

find("gate").addEventListener("submit", event => {
  event.preventDefault();
  token = find("token").value;
  sessionStorage.setItem("token", token);
  find("gate").hidden = true;
  tell("");
  describe();
  if (chosen) choose(chosen);
});

describe();
