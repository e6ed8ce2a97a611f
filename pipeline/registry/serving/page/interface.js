"use strict";
// Lists the operations of openapi.json.
const by = (id) => document.getElementById(id);

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function header(scope, text) {
  const made = element("th", text);
  made.scope = scope;
  return made;
}

function operation(method, path, description) {
  const rows = Object.entries(description.responses || {}).map(([status, response]) =>
    element("tr", "", header("row", status), element("td", response.description)));
  const bodies = Object.entries((description.requestBody || {}).content || {}).map(
    ([type, content]) => [element("p", `Body as ${type}:`),
      element("pre", JSON.stringify(content.schema, null, 2))]).flat();
  for (const body of bodies) if (body.tagName === "PRE") body.tabIndex = 0;
  return element("section", "",
    element("h2", `${method.toUpperCase()} ${path}`),
    element("p", description.description || description.summary),
    ...bodies,
    element("table", "",
      element("tr", "", header("col", "Status"), header("col", "Answer")), ...rows));
}

async function show() {
  const token = by("token").value;
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  try {
    const answer = await fetch("openapi.json", { cache: "no-store", headers });
    const content = await answer.json();
    by("token-row").hidden = answer.status !== 401 && !token;
    by("status").textContent = answer.ok ? "" : content.error;
    if (!answer.ok) return;
    by("operations").replaceChildren(...Object.entries(content.paths).flatMap(
      ([path, methods]) => Object.entries(methods).map(
        ([method, description]) => operation(method, path, description))));
  } catch {
    by("status").textContent = "The server does not answer.";
  }
}

by("token").addEventListener("change", show);
show();
