/* Small helpers for elements and text. */
import { FUNCTION_WORDS } from "./constants.js";

const functionWords = new Set(FUNCTION_WORDS);

export function createElement(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // appends strings as text nodes, never as markup
  return element;
}

export const percent = (fraction) => `${Math.round(100 * fraction)} %`;
export const isContentWord = (word) => !functionWords.has(word.toLowerCase());
export const sentenceCase = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* Copy text. The clipboard API is missing on pages from other hosts without HTTPS. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = createElement("textarea", { readonly: "" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
