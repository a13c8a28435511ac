"use strict";
/* A click on a column's name sorts its table by it, up and then down; rows without a figure come last. */
(function () {
  function figure(text) {
    const found = /^\s*([+-]?[\d,]+(?:\.\d+)?)/.exec(text);
    return found === null ? null : Number(found[1].replaceAll(",", ""));
  }
  function sort(table, column, heading) {
    const down = heading.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const texts = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
    const numeric = heading.classList.contains("number");
    const sign = down ? -1 : 1;
    rows.sort(function (one, other) {
      const [a, b] = [texts.get(one), texts.get(other)];
      if (!numeric) return sign * a.localeCompare(b, undefined, { numeric: true });
      const [x, y] = [figure(a), figure(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    });
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach(function (heading, column) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", () => sort(table, column, heading));
      heading.replaceChildren(button);
    });
  }
  for (const box of document.querySelectorAll("pre")) {
    const button = document.createElement("button");
    const command = box.textContent;
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(command).then(() => { button.textContent = "copied"; });
    });
    box.prepend(button);
  }
})();
