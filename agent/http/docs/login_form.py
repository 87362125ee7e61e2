"""The form of /docs by which somebody with a token or a JWT logs in, so that links can be followed.

Law of this file: the form and the one script of the page. The script speaks to /v1/session of the agent
that the page came from and to nothing else, and keeps nothing. The browser runs it for its hash; any other
script, and a form that a click would send by itself, are not allowed.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

SCRIPT: Final = """
"use strict";
const form = document.getElementById("login");
const [field, told] = [form.querySelector("input"), form.querySelector("output")];
async function ask(method, headers) {
  told.textContent = "Asking ...";
  try {
    const answer = await fetch("/v1/session", {method, headers});
    const about = answer.status === 204 ? {} : await answer.json();
    if (!answer.ok) told.textContent = `${about.detail} (${about.code})`;
    else if (method === "DELETE") told.textContent = "Logged out.";
    else told.textContent = `Logged in as ${about.principal} until ${about.expires_at}.`;
  } catch (error) {
    told.textContent = `Not done: ${error.message}`;
  }
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const credential = field.value.trim();
  field.value = "";
  if (/^[!-~]+$/.test(credential)) ask("POST", {Authorization: `Bearer ${credential}`});
  else told.textContent = "This is no token and no JWT: it has blanks or letters that none has.";
});
form.querySelector("[type=button]").addEventListener("click", () => ask("DELETE", {}));
told.textContent = "";
"""
SCRIPT_HASH: Final = f"sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}"
"""As a Content-Security-Policy names the script."""
# The field has no name, so that no browser ever puts the token into an address.
LOGIN_FORM: Final = (
    "<p>Where the agent asks for credentials, log in, and the links below are followed as that principal. The"
    " browser keeps a cookie for 12 hours at most, and not the token; log out at the end.</p>"
    '<form id="login"><label>Token or JWT <input type="password" autocomplete="off" required></label>'
    ' <button>Log in</button> <button type="button">Log out</button>'
    f" <output>The form needs scripts.</output></form><script>{SCRIPT}</script>"
)
