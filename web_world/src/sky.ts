// Lights without a place: one star each, round the globe, always in the same spots.
import { type Box } from "./labels";
import { type Theme } from "./theme";

const TRIES_PER_STAR = 40;
const FEW = 60; // so few stand round the globe, where they are seen
const ROOM = 14; // pixels between a star that stands out and an edge or a word
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5));

// The same numbers between 0 and 1 for everybody (mulberry32, public domain).
function numbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

export interface Clear {
  x: number;
  y: number;
  radiusX: number;
  radiusY: number;
  isFlat: boolean;
}

export function paintSky(width: number, height: number, density: number, count: number, clear: Clear, words: readonly Box[], theme: Theme): HTMLCanvasElement {
  const made = document.createElement("canvas");
  made.width = Math.max(1, Math.round(width * density));
  made.height = Math.max(1, Math.round(height * density));
  const canvas = made.getContext("2d")!;
  canvas.scale(density, density);
  canvas.fillStyle = theme.star;
  const room = (width * height) / 2 / Math.max(1, count);
  const size = Math.max(0.6, Math.min(5, Math.sqrt(room) * 0.1));
  const draw = numbers(7);
  const isHidden = (x: number, y: number): boolean =>
    words.some(({ left, right, top, bottom }) => x > left - ROOM && x < right + ROOM && y > top - ROOM && y < bottom + ROOM);
  for (let tries = 0, drawn = 0; drawn < count && tries < TRIES_PER_STAR * (count + 20); tries += 1) {
    let [x, y] = [draw() * width, draw() * height];
    if (count <= FEW) {
      const [angle, reach] = [0.6 + tries * GOLDEN_ANGLE, 1.06 + 0.16 * draw()];
      // The flat map reaches from side to side, so there they stand over and under it.
      if (clear.isFlat) x = width * (0.3 + 0.65 * draw());
      else x = clear.x + clear.radiusX * reach * Math.cos(angle);
      const side = clear.isFlat ? (drawn % 2 ? 1 : -1) : Math.sin(angle);
      y = clear.y + clear.radiusY * reach * side;
      [x, y] = [Math.max(ROOM, Math.min(width - ROOM, x)), Math.max(ROOM, Math.min(height - ROOM, y))];
      if (isHidden(x, y) && tries < TRIES_PER_STAR * count) continue;
    } else if (((x - clear.x) / clear.radiusX) ** 2 + ((y - clear.y) / clear.radiusY) ** 2 < 1) {
      continue;
    }
    // Few bright ones among many faint ones, as in a sky.
    const brightness = count <= FEW ? 1 : draw() ** 2;
    canvas.globalAlpha = 0.45 + 0.55 * brightness;
    star(canvas, x, y, size * (0.7 + 0.6 * brightness));
    drawn += 1;
  }
  return made;
}

function star(canvas: CanvasRenderingContext2D, x: number, y: number, size: number): void {
  if (size < 1.1) {
    canvas.fillRect(x - size / 2, y - size / 2, size, size);
    return;
  }
  const inner = size * 0.3;
  canvas.beginPath();
  for (let corner = 0; corner < 8; corner += 1) {
    const reach = corner % 2 ? inner : size * 1.5;
    const angle = (corner * Math.PI) / 4;
    canvas.lineTo(x + reach * Math.sin(angle), y - reach * Math.cos(angle));
  }
  canvas.closePath();
  canvas.fill();
}
