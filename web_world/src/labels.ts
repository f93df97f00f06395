// Names of countries, the largest first, none over another and none over the page's own words.
import { type Lens } from "./camera";
import { type Spot } from "./lights";
import { type Country, Kind } from "./snapshot";
import { countryName, number, text } from "./texts";
import { type Theme } from "./theme";

const SIZE = 12.5;
const FACING_MIN = 0.22; // nearer to the edge a name would hang in the sky
const GAP = 5;
// Nastaliq runs downhill and needs room above and below.
const LINE = document.documentElement.lang === "ur" ? 20 : 14;

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export function paintLabels(
  canvas: CanvasRenderingContext2D,
  lens: Lens,
  countries: readonly Country[],
  theme: Theme,
  spots: readonly Spot[],
  taken: readonly Box[],
): void {
  const marks = new Map(
    spots.filter(({ place }) => place.kind >= Kind.Country).map((spot) => [spot.place.country, spot]),
  );
  const boxes: Box[] = [...taken];
  const most = Math.round(11 * Math.sqrt(lens.camera.zoom) * Math.min(1, lens.width / 700)) + 4;
  canvas.textBaseline = "middle";
  canvas.textAlign = "center";
  canvas.lineJoin = "round";
  let drawn = 0;
  for (const [index, country] of countries.entries()) {
    if (drawn >= most) break;
    // Above the country's own mark if it has one.
    const mark = marks.get(index);
    const point = mark ?? lens.point(country.longitude, country.latitude);
    if (point.facing < FACING_MIN) continue;
    const count = countOf(country);
    const name = countryName(country.code);
    canvas.font = `600 ${SIZE}px ${theme.font}`;
    const width = canvas.measureText(name).width;
    canvas.font = `600 ${SIZE - 1.5}px ${theme.font}`;
    const half = Math.max(width, canvas.measureText(count).width) / 2;
    const y = point.y - LINE - 7 - (mark?.radius ?? 4);
    const box = { left: point.x - half - GAP, right: point.x + half + GAP, top: y - LINE + 4, bottom: y + LINE + 10 };
    if (box.left < 2 || box.right > lens.width - 2 || box.top < 2 || box.bottom > lens.height - 2) continue;
    if (!isOnEarth(lens, box) || boxes.some((other) => overlap(box, other))) continue;
    boxes.push(box);
    drawn += 1;
    outlined(canvas, name, point.x, y, `600 ${SIZE}px ${theme.font}`, theme.label, theme);
    outlined(canvas, count, point.x, y + LINE, `600 ${SIZE - 1.5}px ${theme.font}`, theme.labelSoft, theme);
  }
}

function countOf(country: Country): string {
  if (!country.isAtLeast) return number(country.lights);
  return country.lights === 1 ? text("at-least-one") : text("at-least", { count: number(country.lights) });
}

// Light words on a light sky would not be read.
function isOnEarth(lens: Lens, box: Box): boolean {
  return [box.left, box.right].every((x) => lens.isInside(x, box.top) && lens.isInside(x, box.bottom));
}

function outlined(
  canvas: CanvasRenderingContext2D,
  words: string,
  x: number,
  y: number,
  font: string,
  colour: string,
  theme: Theme,
): void {
  canvas.font = font;
  canvas.lineWidth = 4.5;
  canvas.strokeStyle = theme.halo;
  canvas.strokeText(words, x, y);
  canvas.fillStyle = colour;
  canvas.fillText(words, x, y);
}

const overlap = (one: Box, other: Box): boolean =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
