"use strict";
(() => {
  const cards = Array.from(document.querySelectorAll("#cards > li"), (card) => ({
    card,
    text: Array.from(card.querySelectorAll(".caption, .name"), (part) => part.textContent).join(" ").toLocaleLowerCase(),
  }));
  const query = document.querySelector("#query");
  const search = () => {
    const wanted = query.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const { card, text } of cards) {
      card.hidden = !wanted.every((part) => text.includes(part));
      if (!card.hidden) found++;
    }
    document.querySelector("#count").textContent = wanted.length ? `${found} of ${cards.length}` : "";
  };
  query.addEventListener("input", search);
  search(); // a browser that comes back to the page may have kept the query
})();
