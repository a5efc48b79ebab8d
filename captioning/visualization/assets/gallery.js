"use strict";
(() => {
  const cards = Array.from(document.querySelectorAll("#cards > li"), (card) => ({
    card,
    text: Array.from(card.querySelectorAll(".caption, .name"), (element) => element.textContent).join(" ").toLocaleLowerCase(),
  }));
  const query = document.querySelector("#query");
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
  search(); // browsers may restore the query when navigating back
})();
