// Names of countries, the largest first, none over another and none over the page's own words.
import { type Lens } from "./camera";
import { type Country } from "./snapshot";
import { countryName, number, text } from "./texts";
import { type Theme } from "./theme";

const SIZE = 12.5;
const FACING_MIN = 0.22; // nearer to the edge a name would hang in the sky
const GAP = 5;
// Nastaliq runs downhill and needs room above and below.
const LINE = document.documentElement.lang === "ur" ? 21 : 14;

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
  taken: readonly Box[],
): void {
  const boxes: Box[] = [...taken];
  const most = Math.round(11 * Math.sqrt(lens.camera.zoom) * Math.min(1, lens.width / 700)) + 4;
  canvas.textBaseline = "middle";
  canvas.textAlign = "center";
  canvas.lineJoin = "round";
  let drawn = 0;
  for (const country of countries) {
    if (drawn >= most) break;
    const point = lens.point(country.longitude, country.latitude);
    if (point.facing < FACING_MIN) continue;
    const count = country.isAtLeast && country.lights === 1 ? text("at-least-one") : number(country.lights);
    const name = countryName(country.code);
    canvas.font = `600 ${SIZE}px ${theme.font}`;
    const width = canvas.measureText(name).width;
    canvas.font = `${SIZE - 1.5}px ${theme.font}`;
    const half = Math.max(width, canvas.measureText(count).width) / 2;
    const y = point.y - LINE - 11;
    const box = { left: point.x - half - GAP, right: point.x + half + GAP, top: y - LINE + 4, bottom: y + LINE + 10 };
    if (box.left < 2 || box.right > lens.width - 2 || box.top < 2 || box.bottom > lens.height - 2) continue;
    if (boxes.some((other) => overlap(box, other))) continue;
    boxes.push(box);
    drawn += 1;
    outlined(canvas, name, point.x, y, `600 ${SIZE}px ${theme.font}`, theme.label, theme);
    outlined(canvas, count, point.x, y + LINE, `${SIZE - 1.5}px ${theme.font}`, theme.labelSoft, theme);
  }
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
  canvas.lineWidth = 3;
  canvas.strokeStyle = theme.halo;
  canvas.strokeText(words, x, y);
  canvas.fillStyle = colour;
  canvas.fillText(words, x, y);
}

const overlap = (one: Box, other: Box): boolean =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
