// A page with the elements of /docs' login form, and a browser's fetch with its cookies. Runs the form's script as a
// browser does: node browser.js SCRIPT URL CREDENTIAL. Prints what the form has told, one JSON text a line.
"use strict";

const [, , script, url, credential] = process.argv;
const element = (more) => ({
  listeners: {},
  addEventListener(name, listener) { this.listeners[name] = listener; },
  ...more,
});
const field = element({value: credential}), told = element({textContent: "The form needs scripts."});
const button = element({});
const form = element({querySelector: (which) => ({input: field, output: told, "[type=button]": button})[which]});
globalThis.document = {getElementById: (id) => ({login: form})[id]};

const browsersFetch = globalThis.fetch;
let cookie = "";
globalThis.fetch = async (path, request) => {
  const headers = {...request.headers, ...(cookie ? {Cookie: cookie} : {}), "Sec-Fetch-Site": "same-origin"};
  const answer = await browsersFetch(new URL(path, url), {...request, headers});
  for (const line of answer.headers.getSetCookie()) cookie = line.includes("Max-Age=0") ? "" : line.split(";")[0];
  return answer;
};
async function said() {
  while (["", "Asking ..."].includes(told.textContent)) await new Promise((done) => setTimeout(done, 10));
  console.log(JSON.stringify(told.textContent));
}
async function main() {
  eval(script);
  let wasKept = false;
  form.listeners.submit({preventDefault: () => { wasKept = true; }});
  if (!wasKept || field.value !== "") throw new Error("the browser would have sent the form, or kept the token");
  await said();
  const asked = await globalThis.fetch("/v1/session", {method: "GET"}).catch(() => ({status: 0}));
  console.log(JSON.stringify(asked.ok ? (await asked.json()).proof : asked.status));
  button.listeners.click();
  await said();
  console.log(JSON.stringify(cookie));
}
main();
