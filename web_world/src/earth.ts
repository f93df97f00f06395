// The Earth itself: sky, air, sea, land and night. Drawn below the lights.
import { geoGraticule, geoPath, type GeoPermissibleObjects } from "d3-geo";
import { type Lens, subsolar } from "./camera";
import { type Theme } from "./theme";

interface WireLand {
  step: number;
  polygons: number[][][];
}

export interface Land {
  type: "MultiPolygon";
  coordinates: [number, number][][][];
}

export async function loadLand(name: string, version: string): Promise<Land> {
  const answer = await fetch(`/world/static/${name}.json${version}`);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const { step, polygons } = (await answer.json()) as WireLand;
  const ring = (flat: number[]): [number, number][] => {
    const points: [number, number][] = [];
    let [x, y] = [0, 0];
    for (let index = 0; index < flat.length; index += 2) {
      x += flat[index]!;
      y += flat[index + 1]!;
      points.push([x * step, y * step]);
    }
    points.push(points[0]!);
    return points;
  };
  return { type: "MultiPolygon", coordinates: polygons.map((rings) => rings.map(ring)) };
}

// Every point of the fine land as a unit vector, ring by ring, for near views of the globe.
export type Vectors = Float32Array[];

export function vectorsOf(land: Land): Vectors {
  return land.coordinates.flat().map((ring) => {
    const made = new Float32Array(ring.length * 3);
    ring.forEach(([longitude, latitude], index) => {
      const [lambda, phi] = [(longitude! * Math.PI) / 180, (latitude! * Math.PI) / 180];
      made.set([Math.cos(phi) * Math.cos(lambda), Math.cos(phi) * Math.sin(lambda), Math.sin(phi)], index * 3);
    });
    return made;
  });
}

const POINT_PIXELS = 0.8; // points nearer than this to the one before are left out

// d3 would clip and resample each of tens of thousands of points. Where the globe's edge is not
// seen that is not needed: what lies behind it is moved to the edge, outside the picture.
function traceNear(canvas: CanvasRenderingContext2D, lens: Lens, vectors: Vectors): void {
  const [right, up, out] = lens.axes as [number[], number[], number[]];
  const [x0, y0] = lens.centre;
  const { radius, width, height } = lens;
  canvas.beginPath();
  for (const ring of vectors) {
    const path: number[] = [];
    let [left, top, high, low] = [Infinity, Infinity, -Infinity, -Infinity];
    let [beforeX, beforeY, isSeen] = [Infinity, Infinity, false];
    for (let at = 0; at < ring.length; at += 3) {
      const [a, b, c] = [ring[at]!, ring[at + 1]!, ring[at + 2]!];
      let x = a * right[0]! + b * right[1]!;
      let y = a * up[0]! + b * up[1]! + c * up[2]!;
      if (a * out[0]! + b * out[1]! + c * out[2]! < 0) {
        const length = Math.hypot(x, y) || 1;
        [x, y] = [x / length, y / length];
      } else {
        isSeen = true;
      }
      x = x0 + radius * x;
      y = y0 - radius * y;
      if (Math.abs(x - beforeX) + Math.abs(y - beforeY) < POINT_PIXELS) continue;
      [beforeX, beforeY] = [x, y];
      [left, high, top, low] = [Math.min(left, x), Math.max(high, x), Math.min(top, y), Math.max(low, y)];
      path.push(x, y);
    }
    if (!isSeen || path.length < 6 || high < 0 || left > width || low < 0 || top > height) continue;
    canvas.moveTo(path[0]!, path[1]!);
    for (let at = 2; at < path.length; at += 2) canvas.lineTo(path[at]!, path[at + 1]!);
    canvas.closePath();
  }
}

const GRATICULE = geoGraticule().step([20, 20])();
const SPHERE: GeoPermissibleObjects = { type: "Sphere" };
// From sunset through twilight into the night: the sine of the sun's height.
const DUSK = 0.04;
const DARK = -0.28;
const NIGHT_CELL = 9; // CSS pixels told by one value; the browser smooths between them

export function paintEarth(
  canvas: CanvasRenderingContext2D,
  lens: Lens,
  theme: Theme,
  land: Land | undefined,
  near: Vectors | undefined,
  now: number,
): void {
  const path = geoPath(lens.projection, canvas);
  const trace = (shape: GeoPermissibleObjects): void => {
    canvas.beginPath();
    path(shape);
  };
  if (!lens.camera.isFlat) paintAir(canvas, lens, theme);
  trace(SPHERE);
  canvas.fillStyle = lens.camera.isFlat ? theme.sea : seaOf(canvas, lens, theme);
  canvas.fill();
  canvas.lineWidth = 0.6;
  canvas.strokeStyle = theme.grid;
  trace(GRATICULE);
  canvas.stroke();
  if (land) {
    if (near && lens.isFilled) traceNear(canvas, lens, near);
    else trace(land);
    canvas.fillStyle = theme.land;
    canvas.fill("evenodd");
    canvas.lineWidth = 0.8;
    canvas.strokeStyle = theme.coast;
    canvas.stroke();
  }
  canvas.save();
  trace(SPHERE);
  canvas.clip();
  canvas.drawImage(nightOf(lens, theme, now), 0, 0, lens.width, lens.height);
  canvas.restore();
  if (lens.camera.isFlat) {
    trace(SPHERE);
    canvas.strokeStyle = theme.coast;
    canvas.stroke();
  } else {
    paintEdge(canvas, lens, theme);
  }
}

// How dark it is, computed for few points and drawn large: smooth at every zoom.
function nightOf(lens: Lens, theme: Theme, now: number): HTMLCanvasElement {
  const made = document.createElement("canvas");
  made.width = Math.max(2, Math.round(lens.width / NIGHT_CELL));
  made.height = Math.max(2, Math.round(lens.height / NIGHT_CELL));
  const canvas = made.getContext("2d")!;
  const pixels = canvas.createImageData(made.width, made.height);
  const sun = lens.heights(...subsolar(now));
  const colour = Number.parseInt(theme.night.slice(1), 16);
  for (let row = 0, at = 0; row < made.height; row += 1) {
    const y = ((row + 0.5) / made.height) * lens.height;
    for (let column = 0; column < made.width; column += 1, at += 4) {
      const share = Math.max(0, Math.min(1, (DUSK - sun(((column + 0.5) / made.width) * lens.width, y)) / (DUSK - DARK)));
      pixels.data[at] = colour >>> 24;
      pixels.data[at + 1] = (colour >>> 16) & 255;
      pixels.data[at + 2] = (colour >>> 8) & 255;
      pixels.data[at + 3] = (colour & 255) * share * share * (3 - 2 * share);
    }
  }
  canvas.putImageData(pixels, 0, 0);
  return made;
}

function seaOf(canvas: CanvasRenderingContext2D, lens: Lens, theme: Theme): CanvasGradient {
  const [x, y] = lens.centre;
  const { radius } = lens;
  const made = canvas.createRadialGradient(x - radius * 0.35, y - radius * 0.45, radius * 0.1, x, y, radius);
  made.addColorStop(0, theme.seaLit);
  made.addColorStop(1, theme.sea);
  return made;
}

function paintAir(canvas: CanvasRenderingContext2D, lens: Lens, theme: Theme): void {
  const [x, y] = lens.centre;
  const { radius } = lens;
  const depth = Math.min(radius * 0.16, 70);
  const made = canvas.createRadialGradient(x, y, radius - 2, x, y, radius + depth);
  made.addColorStop(0, theme.air);
  made.addColorStop(0.35, theme.airThin);
  made.addColorStop(1, theme.airNone);
  canvas.fillStyle = made;
  canvas.beginPath();
  canvas.arc(x, y, radius + depth, 0, 2 * Math.PI);
  canvas.fill();
}

// The air over the edge is seen slantwise: a bright rim inside a darker border.
function paintEdge(canvas: CanvasRenderingContext2D, lens: Lens, theme: Theme): void {
  const [x, y] = lens.centre;
  const { radius } = lens;
  const made = canvas.createRadialGradient(x, y, radius * 0.72, x, y, radius);
  made.addColorStop(0, theme.edgeNone);
  made.addColorStop(0.86, theme.edge);
  made.addColorStop(1, theme.rim);
  canvas.fillStyle = made;
  canvas.beginPath();
  canvas.arc(x, y, radius, 0, 2 * Math.PI);
  canvas.fill();
}
