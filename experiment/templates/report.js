// Draws each chart from the data that stand in the page. Expressions are interpreted (ast), since
// the page forbids itself to turn texts into code.
"use strict";
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const drawing = read("drawing");
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    ast: true,
    actions: false,
    config: drawing.config,
    tooltip: { theme: "report" },
  };

  const drawn = Object.entries(drawing.specs).flatMap(([key, specs]) => {
    const { columns, rows } = read("data-" + key);
    const objects = rows.map((row) =>
      Object.fromEntries(columns.map((name, i) => [name, row[i]])));
    return specs.map((spec, i) => {
      const place = document.getElementById("chart-" + key + "-" + i);
      const datasets = { ...spec.datasets, rows: objects };
      return window.vegaEmbed(place, { ...spec, datasets }, options);
    });
  });

  Promise.all(drawn).then(
    () => { document.documentElement.dataset.drawn = String(drawn.length); },
    (error) => { console.error(error); },
  );

  // What is folded away would be missing on paper.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.printed:not([open])")];
    opened.forEach((element) => { element.open = true; });
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((element) => { element.open = false; });
  });
})();
