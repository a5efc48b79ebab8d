/* Requests to the REST API. */

export class UserError extends Error {}

/* fetch() that turns every failure into a UserError with a readable message. */
export async function request(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new UserError("The server does not respond. Check that 'captioning serve' is running.");
  }
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  throw new UserError(detail ?? `The server returned an error (status ${response.status}).`);
}

/* Send one image and return the response. */
export function postImage(url, { name, blob }, signal) {
  const body = new FormData();
  body.append("images", blob, name);
  return request(url, { method: "POST", body, signal });
}

/* Caption one image: { model, seconds, captions: best first }. */
export async function requestCaptions(photo, query, signal) {
  const { model, seconds, captions: [best] } = await (await postImage(`v1/captions?${query}`, photo, signal)).json();
  return { model, seconds, captions: [best, ...best.alternatives] };
}

/* URL of an image that shows what was captioned. Files other than JPEG may be animated or unknown to the browser. */
export async function requestDisplayUrl(photo, signal) {
  if (photo.blob.type === "image/jpeg") {
    const url = URL.createObjectURL(photo.blob);
    const image = new Image();
    image.src = url;
    if (await image.decode().then(() => true, () => false)) return url;
    URL.revokeObjectURL(url);
  }
  return URL.createObjectURL(await (await postImage("v1/previews", photo, signal)).blob());
}
