// The lights: from far a glow each, nearer a ring with its count, near one mark for every Mac.
import { type Lens, type Point } from "./camera";
import { Kind, type Place } from "./snapshot";
import { number } from "./texts";
import { type Theme } from "./theme";

// How large a ring is on the ground, kilometres: an area's inner circle; less than they cover for
// larger cells and countries, or theirs would lie over those of all areas in them.
const REACH_KM: Record<Kind, number> = { 0: 56, 1: 84, 2: 72, 3: 56 };
const RING_PIXELS = 13; // smaller rings are glows
const SPACING_PIXELS = 3.2; // marks nearer to each other than this are told as a count
const APART_ROUNDS = 14;
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5));

export interface Spot extends Point {
  place: Place;
  radius: number;
  isRing: boolean;
}

// Visible places, largest first, so that the small ones are not hidden under them.
export function spotsOf(lens: Lens, places: readonly Place[]): Spot[] {
  const { width, height } = lens;
  const found: Spot[] = [];
  // From far the lights of a large network stay apart only if each is smaller.
  const crowd = lens.camera.zoom > 2 ? 1 : Math.max(0.62, Math.min(1, (500 / (1 + places.length)) ** 0.4));
  for (const place of places) {
    const point = lens.point(place.longitude, place.latitude);
    if (point.facing < 0.02) continue;
    const ground = lens.pixels(REACH_KM[place.kind]);
    const isRing = place.kind !== Kind.Alone && ground >= RING_PIXELS;
    const glow = glowRadius(place, lens.camera.zoom) * crowd;
    const radius = isRing ? ground : Math.min(glow, Math.max(glow * 0.6, ground * 1.6));
    const { x, y } = point;
    if (x < -radius || y < -radius || x > width + radius || y > height + radius) continue;
    found.push({ ...point, place, radius, isRing });
  }
  apart(found.filter(({ isRing }) => isRing));
  return found.sort((one, other) => other.place.lights - one.place.lights);
}

// Larger cells and countries have no one spot, so their rings step aside for those of areas.
function apart(rings: Spot[]): void {
  const loose = rings.filter(({ place }) => place.kind !== Kind.Area);
  for (let round = 0; round < APART_ROUNDS; round += 1) {
    for (const spot of loose) {
      for (const other of rings) {
        if (other === spot) continue;
        const [dx, dy] = [spot.x - other.x, spot.y - other.y];
        const reach = spot.radius + other.radius + 2;
        if (Math.abs(dx) > reach || Math.abs(dy) > reach) continue;
        const distance = Math.hypot(dx, dy);
        const lacking = reach - distance;
        if (lacking <= 0) continue;
        // Those in the very same spot part to the south.
        const [ux, uy] = distance > 0.5 ? [dx / distance, dy / distance] : [0.3, 0.95];
        spot.x += ux * lacking * 0.6;
        spot.y += uy * lacking * 0.6;
      }
    }
  }
}

function glowRadius(place: Place, zoom: number): number {
  if (place.kind === Kind.Alone) return 8.5;
  const size = 1.1 + 0.55 * Math.log2(1 + place.lights);
  return (place.kind === Kind.Country ? size * 1.25 + 1.5 : size) * Math.min(2.2, zoom ** 0.4);
}

export function paintLights(canvas: CanvasRenderingContext2D, spots: readonly Spot[], theme: Theme, glow: HTMLCanvasElement): void {
  canvas.globalCompositeOperation = "lighter";
  for (const spot of spots) {
    if (spot.isRing) continue;
    const size = spot.radius * (spot.place.kind === Kind.Alone ? 4 : 4.4);
    // Few lights may shine brighter than a crowd of them, which adds up.
    const alone = spots.length < 40 ? 0.3 : 0;
    canvas.globalAlpha = alone + Math.min(0.5, 0.14 + 0.04 * Math.log2(1 + spot.place.lights)) * Math.min(1, spot.facing * 3);
    canvas.drawImage(glow, spot.x - size, spot.y - size, 2 * size, 2 * size);
  }
  canvas.globalCompositeOperation = "source-over";
  canvas.globalAlpha = 1;
  const marks = new Marks();
  for (const spot of spots) {
    if (spot.isRing) paintRing(canvas, spot, theme, marks);
    else paintGlow(canvas, spot, theme);
  }
  marks.paint(canvas, theme);
}

function paintGlow(canvas: CanvasRenderingContext2D, spot: Spot, theme: Theme): void {
  const { x, y, radius, place, facing } = spot;
  canvas.globalAlpha = Math.min(1, 0.3 + facing * 2);
  // Near the edge of the globe things are seen from the side.
  const core = radius * (place.kind === Kind.Area || place.kind === Kind.Folded ? 0.42 : 0.38);
  circle(canvas, x, y, core + 0.5);
  canvas.fillStyle = theme.light;
  canvas.fill();
  circle(canvas, x, y, core * 0.55);
  canvas.fillStyle = theme.lightCore;
  canvas.fill();
  if (place.kind === Kind.Country || place.kind === Kind.Alone) {
    circle(canvas, x, y, radius);
    canvas.strokeStyle = theme.light;
    canvas.lineWidth = 1.1;
    canvas.setLineDash(place.kind === Kind.Alone ? [2.4, 2.4] : []);
    canvas.stroke();
    canvas.setLineDash([]);
    paintBusy(canvas, spot, theme, radius + 2.2);
  }
  canvas.globalAlpha = 1;
}

function paintRing(canvas: CanvasRenderingContext2D, spot: Spot, theme: Theme, marks: Marks): void {
  const { x, y, radius, place } = spot;
  circle(canvas, x, y, radius);
  canvas.fillStyle = theme.halo;
  canvas.globalAlpha = 0.35;
  canvas.fill();
  canvas.globalAlpha = 1;
  canvas.strokeStyle = theme.ring;
  canvas.lineWidth = 1;
  canvas.stroke();
  if (place.kind === Kind.Country) {
    circle(canvas, x, y, radius - 3);
    canvas.stroke();
  }
  paintBusy(canvas, spot, theme, radius);
  const spacing = (radius * 0.84) / Math.sqrt(place.lights + 0.5);
  if (spacing >= SPACING_PIXELS / 2 && (radius > 20 || place.lights < 12)) {
    marks.add(spot, spacing);
    return;
  }
  const size = Math.max(10, Math.min(22, radius * 0.62));
  canvas.font = `600 ${size}px ${theme.font}`;
  canvas.textAlign = "center";
  canvas.textBaseline = "middle";
  canvas.fillStyle = theme.light;
  canvas.fillText(number(place.lights), x, y + size * 0.06);
}

function paintBusy(canvas: CanvasRenderingContext2D, spot: Spot, theme: Theme, radius: number): void {
  if (!spot.place.busyTenths) return;
  const start = -Math.PI / 2;
  canvas.beginPath();
  canvas.arc(spot.x, spot.y, radius, start, start + (2 * Math.PI * spot.place.busyTenths) / 10);
  canvas.strokeStyle = theme.busy;
  canvas.lineWidth = 2;
  canvas.stroke();
}

// Marks of all rings, gathered by shape so that each shape is one path.
class Marks {
  readonly #dots = new Path2D();
  readonly #ultras = new Path2D();
  readonly #pods = new Path2D();

  // A sunflower's order: even, round, and the same for everybody; no place of anybody's.
  add(spot: Spot, spacing: number): void {
    const { place } = spot;
    const size = Math.max(0.8, Math.min(3.2, spacing * 0.34));
    for (let index = 0; index < place.lights; index += 1) {
      const reach = spacing * Math.sqrt(index + 0.5);
      const angle = index * GOLDEN_ANGLE;
      const [x, y] = [spot.x + reach * Math.cos(angle), spot.y + reach * Math.sin(angle)];
      if (index < place.ultraSeats) this.#diamond(x, y, size * 1.5);
      else if (index < place.ultraSeats + place.podMacs) this.#pods.rect(x - size * 0.95, y - size * 0.95, size * 1.9, size * 1.9);
      else {
        this.#dots.moveTo(x + size, y);
        this.#dots.arc(x, y, size, 0, 2 * Math.PI);
      }
    }
  }

  #diamond(x: number, y: number, size: number): void {
    this.#ultras.moveTo(x, y - size);
    this.#ultras.lineTo(x + size * 0.85, y);
    this.#ultras.lineTo(x, y + size);
    this.#ultras.lineTo(x - size * 0.85, y);
    this.#ultras.closePath();
  }

  paint(canvas: CanvasRenderingContext2D, theme: Theme): void {
    canvas.fillStyle = theme.light;
    canvas.fill(this.#dots);
    canvas.fillStyle = theme.pod;
    canvas.fill(this.#pods);
    canvas.fillStyle = theme.ultra;
    canvas.fill(this.#ultras);
  }
}

export function circle(canvas: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  canvas.beginPath();
  canvas.arc(x, y, radius, 0, 2 * Math.PI);
}

// One soft disc, drawn once and then copied: gradients for thousands of lights would be slow.
export function makeGlow(theme: Theme): HTMLCanvasElement {
  const made = document.createElement("canvas");
  made.width = made.height = 64;
  const canvas = made.getContext("2d")!;
  const gradient = canvas.createRadialGradient(32, 32, 0, 32, 32, 32);
  const steps: [number, number][] = [[0, 1], [0.2, 0.5], [0.5, 0.14], [1, 0]];
  for (const [at, alpha] of steps) gradient.addColorStop(at, faded(theme.light, alpha));
  canvas.fillStyle = gradient;
  canvas.fillRect(0, 0, 64, 64);
  return made;
}

// `#rrggbb` with an alpha from 0 to 1.
function faded(colour: string, alpha: number): string {
  return `${colour}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
}
