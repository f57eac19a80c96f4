(() => {
  "use strict";
  const root = document.documentElement;
  const make = (name, text, attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // theme: follows the system until the reader chooses
  const theme = document.querySelector(".theme");
  if (theme) {
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const show = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-pressed", dark()); };
    theme.hidden = false;
    theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  }

  // tables: sort by a column, filter rows, save as CSV
  const said = (cell) => cell.dataset.value !== undefined ? cell.dataset.value
    : cell.textContent.replace(/\s+/g, " ").trim();
  const compare = (a, b) => {
    const [x, y] = [parseFloat(a), parseFloat(b)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return isFinite(a) && isFinite(b) ? x - y : a.localeCompare(b, undefined, { numeric: true });
  };
  const sort = (table, heads, at) => {
    const up = heads[at].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [said(row.cells[at]), row]);
    const empty = (value) => value === "";
    rows.sort(([a], [b]) => empty(a) || empty(b) ? compare(a, b) : (up ? 1 : -1) * compare(a, b));
    body.append(...rows.map(([, row]) => row));
  };
  // a cell that a spreadsheet would run as a formula gets an apostrophe; plain numbers cannot be run
  const number = /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?$/i;
  const guarded = (text) => /^[=+\-@\t\r]/.test(text) && !number.test(text) ? "'" + text : text;
  const quoted = (text) => '"' + guarded(text).replace(/"/g, '""') + '"';
  const csv = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const kept = heads.map((head, at) => at).filter((at) => !heads[at].hasAttribute("data-drawing"));
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const lines = [kept.map((at) => quoted(heads[at].dataset.name ?? said(heads[at])))];
    rows.forEach((row) => lines.push(kept.map((at) => quoted(said(row.cells[at])))));
    return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
  };
  const save = (name, text) => {
    const link = make("a", "", { download: name });
    link.href = URL.createObjectURL(new Blob(["\ufeff" + text], { type: "text/csv" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  for (const table of document.querySelectorAll("table.data:not(.plain)")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => {
      if (head.hasAttribute("data-drawing")) return;
      head.dataset.name = said(head);
      const button = make("button", "", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, heads, at));
    });
    const tools = make("div", "", { class: "tools" });
    const rows = [...table.tBodies[0].rows];
    if (rows.length > 7) {
      const filter = make("input", "", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows of " + table.dataset.name });
      const count = make("span", "", { class: "muted small", "aria-live": "polite" });
      filter.addEventListener("input", () => {
        const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
        rows.forEach((row) => { row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word)); });
        const left = rows.filter((row) => !row.hidden).length;
        count.textContent = wanted.length ? left + " of " + rows.length : "";
      });
      tools.append(filter, count);
    }
    const button = make("button", "CSV", { type: "button", "aria-label": "Download " + table.dataset.name + " as CSV" });
    button.addEventListener("click", () => save(table.dataset.name.replace(/\W+/g, "_") + ".csv", csv(table)));
    tools.append(button);
    table.parentElement.before(tools);
  }

  // gallery: order of the samples
  const order = document.querySelector("#gallery-order");
  if (order) {
    order.closest(".tools").hidden = false;
    const box = document.querySelector("#samples");
    order.addEventListener("change", () => {
      const [key, sign] = order.value.split(" ");
      const value = (item) => parseFloat(item.dataset[key]);
      const items = [...box.children].sort((a, b) => (sign === "down" ? -1 : 1) * (value(a) - value(b)));
      box.append(...items);
    });
  }

  // paper shows what a click would
  addEventListener("beforeprint", () => document.querySelectorAll("details.paper").forEach((d) => { d.open = true; }));
})();
