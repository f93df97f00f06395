// Lights without a place: one star each, round the globe, always in the same spots.
import { type Theme } from "./theme";

// Numbers between 0 and 1, even and the same for everybody: the additive recurrence of the plastic
// number (M. Roberts, "The unreasonable effectiveness of quasirandom sequences").
const STEP_X = 0.7548776662466927;
const STEP_Y = 0.5698402909980532;
const TRIES_PER_STAR = 40;

export interface Clear {
  x: number;
  y: number;
  radiusX: number;
  radiusY: number;
}

export function paintSky(width: number, height: number, density: number, count: number, clear: Clear, theme: Theme): HTMLCanvasElement {
  const made = document.createElement("canvas");
  made.width = Math.max(1, Math.round(width * density));
  made.height = Math.max(1, Math.round(height * density));
  const canvas = made.getContext("2d")!;
  canvas.scale(density, density);
  canvas.fillStyle = theme.star;
  const size = Math.max(0.55, Math.min(3.4, 3.6 - Math.log10(1 + count) * 0.85));
  let drawn = 0;
  for (let index = 1; drawn < count && index < TRIES_PER_STAR * (count + 20); index += 1) {
    const x = ((index * STEP_X) % 1) * width;
    const y = ((index * STEP_Y) % 1) * height;
    if (((x - clear.x) / clear.radiusX) ** 2 + ((y - clear.y) / clear.radiusY) ** 2 < 1) continue;
    // A few sizes and brightnesses, as in a sky.
    const magnitude = 0.6 + 0.4 * ((index * 0.618) % 1);
    canvas.globalAlpha = 0.35 + 0.6 * ((index * 0.383) % 1);
    star(canvas, x, y, size * magnitude);
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
