// Draws every chart from the specification beside it, over the still picture that is there without this script.
(() => {
  const tip = document.createElement("div");
  tip.className = "tooltip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  const show = (_handler, event, _item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = document.createElement("dl");
    for (const [name, shown] of Object.entries(value)) {
      const term = document.createElement("dt");
      const description = document.createElement("dd");
      term.textContent = name;
      description.textContent = shown;
      list.append(term, description);
    }
    tip.replaceChildren(list);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - height - 4))}px`;
  };

  const save = (text, type, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });

  for (const figure of document.querySelectorAll("figure.chart")) {
    const { name, csv, spec } = JSON.parse(figure.querySelector("script").textContent);
    const place = figure.querySelector(".drawing");
    const still = new XMLSerializer().serializeToString(place.querySelector("svg"));
    const fresh = document.createElement("div");
    vegaEmbed(fresh, spec, { actions: false, defaultStyle: false, renderer: "svg", tooltip: show }).then(() => {
      place.replaceChildren(fresh);
      figure.dataset.drawn = "yes";
    });
    const [svgButton, csvButton] = figure.querySelectorAll("button");
    svgButton.addEventListener("click", () => save(still, "image/svg+xml", `${name}.svg`));
    csvButton.addEventListener("click", () => save(csv, "text/csv", `${name}.csv`));
    figure.querySelector(".buttons").hidden = false;
  }
})();
