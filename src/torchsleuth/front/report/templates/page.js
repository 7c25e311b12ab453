"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "selected: press Ctrl-C";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }
  const tree = document.getElementById("tree");
  if (tree) {
    const box = document.getElementById("search");
    const told = document.getElementById("found");
    const groups = [...tree.querySelectorAll("details")];
    const rows = [...tree.querySelectorAll("li:not(.g)")];
    const calls = rows.filter((row) => !row.classList.contains("s"));
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const before = groups.map((group) => group.open);
    const search = () => {
      const wanted = box.value.trim().toLowerCase();
      rows.forEach((row, number) => { row.hidden = wanted !== "" && !texts[number].includes(wanted); });
      groups.forEach((group, number) => {
        const any = group.querySelector("li:not(.g):not([hidden])") !== null;
        group.parentElement.hidden = wanted !== "" && !any;
        group.open = wanted === "" ? before[number] : any;
      });
      const left = calls.filter((row) => !row.hidden).length;
      told.textContent = wanted === "" ? "" : `${left} of ${calls.length} calls`;
    };
    box.addEventListener("input", search);
    document.getElementById("all").addEventListener("click", () => groups.forEach((group) => { group.open = true; }));
    document.getElementById("none").addEventListener("click", () => groups.forEach((group) => { group.open = false; }));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
      if (event.key === "Escape" && document.activeElement === box) { box.value = ""; search(); box.blur(); }
    });
  }
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.print")) each.open = true;
  });
})();
