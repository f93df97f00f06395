// Where we look from, and where a point of the Earth then lies on the canvas.
import { geoEqualEarth, geoOrthographic, type GeoProjection } from "d3-geo";

const RADIANS = Math.PI / 180;
export const EARTH_KM = 6371;
export const ZOOM_MAX = 32;
const GLOBE_SHARE = 0.41; // of the shorter side: leaves the sky some room
const LATITUDE_MAX = 85;

export interface Camera {
  longitude: number;
  latitude: number;
  zoom: number;
  isFlat: boolean;
}

export interface Point {
  x: number;
  y: number;
  // 1 in the middle of the globe, 0 on its edge; always 1 on the flat map.
  facing: number;
}

export class Lens {
  readonly projection: GeoProjection;
  readonly radius: number;
  readonly centre: [number, number];
  readonly #vectors: [number, number, number, number];

  constructor(
    readonly camera: Camera,
    readonly width: number,
    readonly height: number,
    offset: [number, number],
  ) {
    const { longitude, latitude, zoom, isFlat } = camera;
    this.centre = [width / 2 + offset[0], height / 2 + offset[1]];
    const [x, y] = this.centre;
    if (isFlat) {
      const fit = Math.min(width / 5.6, height / 2.8);
      this.radius = fit * zoom;
      this.projection = geoEqualEarth().scale(this.radius).translate([x, y]).rotate([-longitude, 0]).precision(1);
      const middle = this.projection([longitude, latitude]);
      if (middle) this.projection.translate([x, y - (middle[1] - y)]);
    } else {
      this.radius = Math.min(width, height) * GLOBE_SHARE * zoom;
      this.projection = geoOrthographic()
        .scale(this.radius)
        .translate([x, y])
        .rotate([-longitude, -latitude])
        .clipAngle(90)
        .precision(zoom > 4 ? 0.7 : 0.4);
    }
    // Outside the canvas nothing need be computed; this is what keeps near views fast.
    if (zoom > 2) {
      this.projection.clipExtent([
        [-40, -40],
        [width + 40, height + 40],
      ]);
    }
    this.#vectors = [
      Math.sin(longitude * RADIANS),
      Math.cos(longitude * RADIANS),
      Math.sin(latitude * RADIANS),
      Math.cos(latitude * RADIANS),
    ];
  }

  // Without d3's machinery, which costs ten times as much for thousands of single points.
  point(longitude: number, latitude: number): Point {
    if (this.camera.isFlat) {
      const [x, y] = this.projection([longitude, latitude]) ?? [-1e6, -1e6];
      return { x, y, facing: 1 };
    }
    const [sinLongitude, cosLongitude, sinMiddle, cosMiddle] = this.#vectors;
    const [lambda, phi] = [longitude * RADIANS, latitude * RADIANS];
    const [sinPhi, cosPhi] = [Math.sin(phi), Math.cos(phi)];
    const cosDelta = Math.cos(lambda) * cosLongitude + Math.sin(lambda) * sinLongitude;
    const sinDelta = Math.sin(lambda) * cosLongitude - Math.cos(lambda) * sinLongitude;
    return {
      x: this.centre[0] + this.radius * cosPhi * sinDelta,
      y: this.centre[1] - this.radius * (cosMiddle * sinPhi - sinMiddle * cosPhi * cosDelta),
      facing: sinMiddle * sinPhi + cosMiddle * cosPhi * cosDelta,
    };
  }

  // The sine of the height at which something that stands overhead at this place is seen from the
  // place at a point of the canvas.
  heights(longitude: number, latitude: number): (x: number, y: number) => number {
    if (this.camera.isFlat) return this.#flatHeights(longitude, latitude);
    const overhead = this.point(longitude, latitude);
    const [sunX, sunY] = [(overhead.x - this.centre[0]) / this.radius, (overhead.y - this.centre[1]) / this.radius];
    return (x, y) => {
      let [dx, dy] = [(x - this.centre[0]) / this.radius, (y - this.centre[1]) / this.radius];
      const out = Math.hypot(dx, dy);
      if (out > 1) [dx, dy] = [dx / out, dy / out];
      return dx * sunX + dy * sunY + Math.sqrt(Math.max(0, 1 - dx * dx - dy * dy)) * overhead.facing;
    };
  }

  // On the flat map a row has one latitude, and its longitudes are evenly spaced.
  #flatHeights(longitude: number, latitude: number): (x: number, y: number) => number {
    const sine = Math.sin(latitude * RADIANS);
    const cosine = Math.cos(latitude * RADIANS);
    const [middle] = this.centre;
    let row = Number.NaN;
    let [fixed, swing, step] = [0, 0, 0];
    return (x, y) => {
      if (y !== row) {
        row = y;
        const phi = this.projection.invert?.([middle, y])?.[1] ?? 0;
        const height = Math.max(-90, Math.min(90, phi)) * RADIANS;
        [fixed, swing] = [sine * Math.sin(height), cosine * Math.cos(height)];
        const ahead = this.projection.invert?.([middle + 10, y])?.[0] ?? 0;
        step = wrapped(ahead - this.camera.longitude) / 10;
      }
      const lambda = this.camera.longitude + (x - middle) * step;
      return fixed + swing * Math.cos((lambda - longitude) * RADIANS);
    };
  }

  // The directions right, up and out of the picture, as unit vectors of the Earth.
  get axes(): [readonly number[], readonly number[], readonly number[]] {
    const [sinLongitude, cosLongitude, sinMiddle, cosMiddle] = this.#vectors;
    return [
      [-sinLongitude, cosLongitude, 0],
      [-sinMiddle * cosLongitude, -sinMiddle * sinLongitude, cosMiddle],
      [cosMiddle * cosLongitude, cosMiddle * sinLongitude, sinMiddle],
    ];
  }

  // Whether the globe's edge lies outside the canvas.
  get isFilled(): boolean {
    return !this.camera.isFlat && this.radius > 1.02 * (Math.hypot(this.width, this.height) / 2 + Math.abs(this.centre[1] - this.height / 2));
  }

  pixels(kilometres: number): number {
    return (kilometres * this.radius) / EARTH_KM;
  }

  isInside(x: number, y: number): boolean {
    if (this.camera.isFlat) return true;
    return Math.hypot(x - this.centre[0], y - this.centre[1]) <= this.radius;
  }
}

export function moved(camera: Camera, dx: number, dy: number, radius: number): Camera {
  const degrees = 1 / (radius * RADIANS);
  return {
    ...camera,
    longitude: wrapped(camera.longitude - dx * degrees),
    latitude: Math.max(-LATITUDE_MAX, Math.min(LATITUDE_MAX, camera.latitude + dy * degrees)),
  };
}

export const zoomed = (camera: Camera, factor: number): Camera => ({
  ...camera,
  zoom: Math.max(1, Math.min(ZOOM_MAX, camera.zoom * factor)),
});

export const wrapped = (longitude: number): number => ((((longitude + 180) % 360) + 360) % 360) - 180;

// Where the sun stands overhead. Low precision (about a quarter of a degree), from the Astronomical
// Almanac's formulas for the sun's coordinates.
export function subsolar(milliseconds: number): [number, number] {
  const days = milliseconds / 86_400_000 - 10_957.5;
  const mean = (280.46 + 0.9856474 * days) * RADIANS;
  const anomaly = (357.528 + 0.9856003 * days) * RADIANS;
  const ecliptic = mean + (1.915 * Math.sin(anomaly) + 0.02 * Math.sin(2 * anomaly)) * RADIANS;
  const tilt = 23.439 * RADIANS;
  const declination = Math.asin(Math.sin(tilt) * Math.sin(ecliptic));
  const ascension = Math.atan2(Math.cos(tilt) * Math.sin(ecliptic), Math.cos(ecliptic));
  const equation = wrapped((mean - ascension) / RADIANS);
  const hours = (milliseconds / 3_600_000) % 24;
  return [wrapped(-15 * (hours - 12) - equation), declination / RADIANS];
}
