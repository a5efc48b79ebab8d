"use strict";
(() => {
  const list = document.querySelector("#cards");
  const cards = Array.from(list.children, (card, index) => ({
    card,
    index,
    score: Number(card.dataset.score), // -1 without a caption
    name: card.querySelector(".name").textContent,
    text: Array.from(card.querySelectorAll(".caption, .name"), (element) => element.textContent).join(" ").toLocaleLowerCase(),
  }));
  const query = document.querySelector("#query");
  const order = document.querySelector("#order");
  const failedLast = (score) => (score < 0 ? 2 : score);
  const COMPARE = {
    given: (a, b) => a.index - b.index,
    name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
    highest: (a, b) => b.score - a.score,
    lowest: (a, b) => failedLast(a.score) - failedLast(b.score),
  };
  const search = () => {
    const terms = query.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let numMatches = 0;
    for (const { card, text } of cards) {
      card.hidden = !terms.every((term) => text.includes(term));
      if (!card.hidden) numMatches++;
    }
    document.querySelector("#count").textContent = terms.length ? `${numMatches} of ${cards.length}` : "";
  };
  query.addEventListener("input", search);
  order.addEventListener("change", () => {
    list.append(...cards.toSorted(COMPARE[order.value]).map(({ card }) => card));
  });
  search(); // browsers may restore the query when navigating back
})();
