/* Documentation of the REST API, rendered from /openapi.json; it works without other hosts. */
import { createElement } from "./dom.js";

/* Type and range of a parameter or field in words. */
function describeType(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.filter(({ type }) => type !== "null").map(describeType).join(" or ");
  if (schema.enum) return schema.enum.join(", ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? describeType(schema.items) : "values"}`;
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  const bounds = [];
  if (low !== undefined) bounds.push(`${schema.minimum === undefined ? ">" : "\u2265"} ${low}`);
  if (high !== undefined) bounds.push(`${schema.maximum === undefined ? "<" : "\u2264"} ${high}`);
  return [schema.type, ...bounds].join(" ");
}

function createTable(headers, rows) {
  const head = createElement("tr", {}, ...headers.map((text) => createElement("th", { scope: "col" }, text)));
  const body = rows.map(([name, ...cells]) => createElement("tr", {},
    createElement("td", {}, createElement("code", {}, name)), ...cells.map((text) => createElement("td", {}, text))));
  return createElement("div", { class: "table" }, createElement("table", {}, head, ...body));
}

function createOperation(path, method, operation) {
  const url = new URL(path.slice(1), document.baseURI);
  const command = operation.requestBody ? `curl --form images=@photo.jpg '${url}'` : `curl '${url}'`;
  const section = createElement("section", { class: "card" },
    createElement("h2", {}, createElement("code", {}, `${method.toUpperCase()} ${path}`)),
    createElement("p", {}, operation.description ?? operation.summary), createElement("pre", {}, createElement("code", {}, command)));
  const parameters = (operation.parameters ?? []).map(({ name, schema, description }) =>
    [name, describeType(schema), description ?? "", schema.default === undefined ? "" : String(schema.default)]);
  if (parameters.length) {
    section.append(createElement("h3", {}, "Query parameters"), createTable(["Name", "Type", "Meaning", "Default"], parameters));
  }
  const responses = Object.entries(operation.responses).map(([status, { description, content = {} }]) => {
    const schema = content["application/json"]?.schema;
    return [status, description, schema?.$ref ? describeType(schema) : Object.keys(content).join(", ")];
  });
  section.append(createElement("h3", {}, "Responses"), createTable(["Status", "Meaning", "Content"], responses));
  return section;
}

function createSchema(name, { properties = {} }) {
  const rows = Object.entries(properties).map(([field, schema]) => [field, describeType(schema), schema.description ?? ""]);
  return createElement("section", { class: "card", id: name },
    createElement("h2", {}, createElement("code", {}, name)), createTable(["Field", "Type", "Meaning"], rows));
}

const { paths, components } = await (await fetch("openapi.json")).json();
const operations = Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => createOperation(path, method, operation)));
const schemas = Object.entries(components.schemas).filter(([name]) => !name.includes("Validation"));
document.getElementById("operations").append(...operations, ...schemas.map((entry) => createSchema(...entry)));
