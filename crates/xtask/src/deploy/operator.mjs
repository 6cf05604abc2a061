// Holds objects of the Prometheus operator against its types: `node operator.mjs FILE`, a JSON list of objects, started where the npm package
// @kubernetes-models/prometheus-operator is installed.
//
// The package's validators know the types of fields but say nothing of fields that do not exist, which a cluster would drop without a word.
// They read every field that they know, so what none of them has read is a field that the operator does not know.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = join(process.cwd(), "node_modules/@kubernetes-models/prometheus-operator/_schemas");
const PREFIX = "ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1";

/** The value, with a note in `read` of every path below it that somebody looks at. */
function watched(value, path, read) {
  if (value === null || typeof value !== "object") return value;
  return new Proxy(value, {
    get(target, key) {
      if (typeof key === "symbol") return target[key];
      read.add(`${path}/${key}`);
      return watched(target[key], `${path}/${key}`, read);
    },
  });
}

/** Paths of everything in the value. */
function paths(value, path) {
  if (value === null || typeof value !== "object") return [];
  return Object.keys(value).flatMap((key) => [`${path}/${key}`, ...paths(value[key], `${path}/${key}`)]);
}

const faults = [];
const objects = JSON.parse(readFileSync(process.argv[2], "utf8"));
for (const object of objects) {
  const name = `${object.kind} ${object.metadata.name}`;
  const { validate } = await import(pathToFileURL(join(folder, `${PREFIX}${object.kind}.js`)));
  const read = new Set();
  if (!validate(watched(object, "", read))) {
    faults.push(...validate.errors.map((error) => `${name}: ${error.instancePath}: ${JSON.stringify(error.params)}`));
  }
  const unknown = paths(object, "").filter((path) => !read.has(path));
  faults.push(...unknown.map((path) => `${name}: the operator does not know ${path}`));
}
console.log(faults.join("\n"));
process.exit(faults.length > 0 || objects.length === 0 ? 1 : 0);
