"use strict";
// Every address is relative, so that the page works behind a proxy's path.
const by = (id) => document.getElementById(id);

function headers() {
  const token = by("token").value;
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function call(path, options = {}) {
  const answer = await fetch(path, { cache: "no-store", headers: headers(), ...options });
  if (answer.status === 401) by("token-row").hidden = false;
  return [answer, await answer.json()];
}

async function showModel() {
  try {
    const [answer, status] = await call("status");
    by("model").textContent = answer.ok
      ? `${status.model}, version ${status.version}: ${status.classes.length} classes`
      : status.error;
  } catch {
    by("model").textContent = "The server does not answer.";
  }
}

async function predict(event) {
  event.preventDefault();
  const [file] = by("file").files;
  if (!file) return;
  by("result").textContent = "…";
  by("answer").hidden = true;
  try {
    const [answer, content] = await call("predict", { method: "POST", body: file });
    by("result").textContent = answer.ok
      ? `${content.label}, ${(100 * content.probability).toFixed(1)}%`
      : content.error;
    by("answer").textContent = JSON.stringify(content, null, 2);
    by("answer").hidden = false;
  } catch {
    by("result").textContent = "The server does not answer.";
  }
}

by("form").addEventListener("submit", predict);
by("token").addEventListener("change", showModel);
showModel();
