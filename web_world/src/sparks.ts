// Work on the network, seen as sparks. On which lights they shine is drawn by lot, as the legend says.
import { type Lens } from "./camera";
import { circle } from "./lights";
import { type Place } from "./snapshot";
import { type Theme } from "./theme";

const SPARK_MS = 1_600;
const TICK_MS = 5_000; // until the next figures come
const JOBS_PER_SPARK = 12; // jobs of the last minute; a tick is a twelfth of it
const SPARKS_MAX = 10;

export class Sparks {
  #sparks: { place: Place; start: number }[] = [];

  kindle(jobs: number, places: readonly Place[], now: number): void {
    const total = places.reduce((sum, { lights }) => sum + lights, 0);
    const wanted = total > 0 ? Math.min(SPARKS_MAX, Math.ceil(jobs / JOBS_PER_SPARK)) : 0;
    for (let index = 0; index < wanted; index += 1) {
      let drawn = Math.random() * total;
      const place = places.find(({ lights }) => (drawn -= lights) <= 0) ?? places[0]!;
      this.#sparks.push({ place, start: now + Math.random() * TICK_MS });
    }
  }

  // Whether there are any left.
  paint(canvas: CanvasRenderingContext2D, lens: Lens, theme: Theme, now: number): boolean {
    this.#sparks = this.#sparks.filter(({ start }) => now < start + SPARK_MS);
    for (const { place, start } of this.#sparks) {
      const share = (now - start) / SPARK_MS;
      const point = lens.point(place.longitude, place.latitude);
      if (share < 0 || point.facing < 0.05) continue;
      circle(canvas, point.x, point.y, 3 + 22 * share);
      canvas.globalAlpha = (1 - share) ** 2 * 0.8;
      canvas.strokeStyle = theme.busy;
      canvas.lineWidth = 1.6;
      canvas.stroke();
    }
    canvas.globalAlpha = 1;
    return this.#sparks.length > 0;
  }
}
