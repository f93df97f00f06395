// Builds what the browser gets, into ../static and ../data: `npm ci && npm run build`.
// The output is committed, so neither the wheel nor its users need Node.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { geoArea, geoCentroid } from "d3-geo";
import { build } from "esbuild";
import { feature } from "topojson-client";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "..");
const statics = join(target, "static");
const atlas = (name) =>
  JSON.parse(readFileSync(join(here, "node_modules/world-atlas", name), "utf8"));

// Land as rings of whole steps, each but the first told by its difference: a third of TopoJSON's
// size after gzip, and nothing to decode it with.
function land(name, step, pointsMin) {
  const topology = atlas(name);
  const shape = feature(topology, topology.objects.land);
  const polygons = shape.features.flatMap(({ geometry }) =>
    geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates,
  );
  const coded = (ring) => {
    const flat = [];
    let before;
    for (const [longitude, latitude] of ring) {
      const at = [Math.round(longitude / step), Math.round(latitude / step)];
      if (before && at[0] === before[0] && at[1] === before[1]) continue;
      flat.push(before ? at[0] - before[0] : at[0], before ? at[1] - before[1] : at[1]);
      before = at;
    }
    return flat;
  };
  const decoded = (flat) => {
    let [x, y] = [0, 0];
    const points = [];
    for (let index = 0; index < flat.length; index += 2) {
      x += flat[index];
      y += flat[index + 1];
      points.push([x * step, y * step]);
    }
    return [...points, points[0]];
  };
  // A small ring may turn over when it is rounded; it would then hold all the Earth but itself.
  const isSound = (flat) =>
    flat.length >= 2 * pointsMin && geoArea({ type: "Polygon", coordinates: [decoded(flat)] }) < 2 * Math.PI;
  const isHole = (flat) => geoArea({ type: "Polygon", coordinates: [decoded(flat)] }) > 2 * Math.PI;
  const kept = polygons.flatMap((polygon) => {
    const [outer, ...holes] = polygon.map(coded);
    if (!isSound(outer)) return [];
    return [[outer, ...holes.filter((flat) => flat.length >= 2 * pointsMin && isHole(flat))]];
  });
  return JSON.stringify({ step, polygons: kept });
}

// A country's light stands in the middle of its largest part.
function countries() {
  const topology = atlas("countries-50m.json");
  const found = {};
  const areas = {};
  for (const { id, geometry, properties } of feature(topology, topology.objects.countries).features) {
    // Kosovo has a code that it gave itself; what else has no number is no entry of ISO 3166.
    const key = id ?? (properties.name === "Kosovo" ? "XK" : undefined);
    if (key === undefined) continue;
    const parts = geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates;
    const largest = parts
      .map((coordinates) => ({ type: "Polygon", coordinates }))
      .sort((one, other) => geoArea(other) - geoArea(one))[0];
    // A country's distant islands may stand on their own under its number.
    if (geoArea(largest) <= (areas[key] ?? 0)) continue;
    areas[key] = geoArea(largest);
    const [longitude, latitude] = geoCentroid(largest);
    found[key] = [Number(latitude.toFixed(1)), Number(longitude.toFixed(1))];
  }
  const sorted = Object.entries(found).sort(([one], [other]) => (one < other ? -1 : 1));
  return `{\n${sorted.map(([key, value]) => `${JSON.stringify(key)}: ${JSON.stringify(value)}`).join(",\n")}\n}\n`;
}

rmSync(statics, { recursive: true, force: true });
mkdirSync(join(statics, "fonts"), { recursive: true });
mkdirSync(join(target, "data"), { recursive: true });
const bundle = (entry, outfile) =>
  build({
    entryPoints: [join(here, entry)],
    outfile: join(statics, outfile),
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022", "safari16", "firefox115", "chrome110"],
    external: ["/world/static/*"],
    legalComments: "none",
    charset: "utf8",
    absWorkingDir: here,
  });
await bundle("main.ts", "world.js");
await bundle("share.ts", "share.js");
await bundle("calculator.ts", "calculator.js");
await bundle("styles/world.css", "world.css");
await bundle("styles/market.css", "market.css");
writeFileSync(join(statics, "land.json"), land("land-110m.json", 0.2, 4));
writeFileSync(join(statics, "land-fine.json"), land("land-50m.json", 0.06, 5));
writeFileSync(join(target, "data", "countries.json"), countries());
copyFileSync(join(here, "icon.svg"), join(statics, "icon.svg"));
for (const [folder, file, name] of [
  ["@fontsource-variable/vazirmatn", "vazirmatn-arabic-wght-normal.woff2", "vazirmatn-arabic.woff2"],
  ["@fontsource/noto-nastaliq-urdu", "noto-nastaliq-urdu-arabic-400-normal.woff2", "nastaliq.woff2"],
  ["@fontsource/noto-nastaliq-urdu", "noto-nastaliq-urdu-arabic-700-normal.woff2", "nastaliq-bold.woff2"],
]) {
  copyFileSync(join(here, "node_modules", folder, "files", file), join(statics, "fonts", name));
}
// Pictures of shared links are drawn by the server, which needs Latin and Arabic letters in one font.
mkdirSync(join(target, "data", "fonts"), { recursive: true });
copyFileSync(
  join(here, "node_modules", "vazirmatn", "fonts", "webfonts", "Vazirmatn[wght].woff2"),
  join(target, "data", "fonts", "vazirmatn.woff2"),
);

// What ships with the bundle, and under which terms.
const notices = ["d3-geo", "d3-array", "internmap", "@fluent/bundle", "world-atlas", "@fontsource-variable/vazirmatn", "vazirmatn", "@fontsource/noto-nastaliq-urdu"].map((name) => {
  const root = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const file = readdirSync(root).find((entry) => /^(licen[cs]e|ofl)/i.test(entry));
  const text = file ? readFileSync(join(root, file), "utf8").trim() : "";
  return `${name} ${version} (${license})\n\n${text}\n`;
});
writeFileSync(join(statics, "THIRD_PARTY.txt"), notices.join(`\n${"-".repeat(80)}\n\n`));

// A fingerprint of the sources, so that a test can tell whether the output is theirs without Node.
const digest = createHash("sha256");
const sources = (folder) =>
  readdirSync(join(here, folder), { withFileTypes: true })
    .filter(({ name }) => name !== "node_modules")
    .flatMap((entry) => {
      const path = folder ? `${folder}/${entry.name}` : entry.name;
      return entry.isDirectory() ? sources(path) : [path];
    })
    .filter((path) => /\.(ts|css|mjs|svg|json)$/.test(path))
    .sort();
for (const path of sources("")) digest.update(`${path}\0`).update(readFileSync(join(here, path))).update("\0");
writeFileSync(join(statics, "sources.sha256"), `${digest.digest("hex")}\n`);
