// Draws every chart from the specification beside it, as wide as the page allows, over the still picture that is there
// without this script; shows which section is in view.
(() => {
  const WIDEST = 960;
  const NARROWEST = 0.85; // of a panel's own width, before panels go below one another
  const MOST_ABREAST = 5;
  const MOST_STRETCH = 3.5; // times a panel's own width
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

  const widthOf = (svg) => Number(svg.getAttribute("width"));

  // The panels of a chart, and how many stand side by side.
  const panelsOf = (spec) => {
    if (spec.hconcat) return { panels: spec.hconcat, abreast: spec.hconcat.length };
    if (!spec.facet) return { panels: [spec], abreast: 1 };
    const number = new Set(spec.datasets[spec.data.name].map((row) => row[spec.facet.field])).size;
    return { panels: [spec.spec], abreast: Math.min(spec.columns, number), number };
  };

  // Put as many panels side by side as there is room for.
  const spread = (spec, natural, room) => {
    const { panels, abreast, number } = panelsOf(spec);
    if (!number) return;
    const gap = spec.spacing?.column ?? 20;
    const [panel] = panels;
    const besides = natural - abreast * panel.width - (abreast - 1) * gap;
    const fit = Math.floor((room - besides + gap) / (NARROWEST * panel.width + gap));
    const rows = Math.ceil(number / Math.max(1, Math.min(fit, MOST_ABREAST)));
    spec.columns = Math.ceil(number / rows);
  };

  // Make the panels wider or narrower, so that the drawing, which was `drawn` wide, fills the room.
  const fill = (spec, own, drawn, room) => {
    const { panels, abreast } = panelsOf(spec);
    panels.forEach((panel, i) => {
      const most = MOST_STRETCH * panelsOf(own).panels[i].width;
      panel.width = Math.max(60, Math.min(most, panel.width + (room - drawn) / abreast));
    });
  };

  const embed = async (spec) => {
    const place = document.createElement("div");
    await vegaEmbed(place, spec, { actions: false, defaultStyle: false, renderer: "svg", tooltip: show });
    return place;
  };

  const draw = async (figure) => {
    const { spec, place, still } = figure;
    const room = Math.min(WIDEST, place.clientWidth);
    if (room === 0 || room === figure.room) return;
    figure.room = room;
    const fresh = structuredClone(spec);
    fresh.config.legend.columns = Math.max(1, Math.floor(room / 150));
    spread(fresh, widthOf(still), room);
    let drawn = await embed(fresh);
    for (let tries = 0; tries < 2 && Math.abs(widthOf(drawn.querySelector("svg")) - room) > 4; tries += 1) {
      fill(fresh, spec, widthOf(drawn.querySelector("svg")), room);
      drawn = await embed(fresh);
    }
    place.replaceChildren(drawn);
    figure.element.dataset.drawn = "yes";
  };

  const figures = [...document.querySelectorAll("figure.chart")].map((element) => {
    const { name, csv, spec } = JSON.parse(element.querySelector("script").textContent);
    const place = element.querySelector(".drawing");
    const still = place.querySelector("svg");
    const [svgButton, csvButton] = element.querySelectorAll("button");
    svgButton.addEventListener("click", () =>
      save(new XMLSerializer().serializeToString(still), "image/svg+xml", `${name}.svg`),
    );
    csvButton.addEventListener("click", () => save(csv, "text/csv", `${name}.csv`));
    element.querySelector(".buttons").hidden = false;
    return { element, place, still, spec };
  });
  const drawAll = () => figures.forEach(draw);
  drawAll();
  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 200);
  });

  // Paper has its own width, and nothing opens on it: the still pictures and all tables are printed.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
    for (const { element, place, still } of figures) {
      place.replaceChildren(still);
      delete element.dataset.drawn;
    }
  });
  window.addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
    for (const figure of figures) figure.room = 0;
    drawAll();
  });

  // Contents stand open beside a wide page; on a narrow one they open on a click and close on a choice.
  const contents = document.querySelector("nav details");
  const beside = window.matchMedia("(min-width: 62rem)");
  const unfold = () => {
    contents.open = beside.matches;
  };
  unfold();
  beside.addEventListener("change", unfold);
  contents.addEventListener("click", (event) => {
    if (event.target.closest("a")) unfold();
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) links.get(target.id)?.setAttribute("aria-current", "true");
        else links.get(target.id)?.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-15% 0px -84% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) watch.observe(section);
})();
