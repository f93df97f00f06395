// The snapshot as it comes over the wire, and as the islands use it.

export interface Totals {
  macs_seen: number;
  stars: number;
  working: number | null;
  measured?: number;
  attested?: number;
  memory_gib?: number;
  bandwidth_gb_per_second?: number;
  ultra_seats?: number;
  pods?: number;
}

type Column = (number | null)[];

interface Wire {
  version: number;
  at: number;
  totals: Totals;
  minutes: { jobs: Column; tokens: Column };
  countries: {
    code: string[];
    latitude: number[];
    longitude: number[];
    lights: number[];
    at_least: number[];
    ultra_seats: number[];
    memory_gib: Column;
    busy_tenths: Column;
  };
  places: Record<"country" | "latitude" | "longitude" | "lights" | "kind" | "ultra_seats" | "pod_macs", number[]> & {
    busy_tenths: Column;
  };
}

export const enum Kind {
  Area = 0,
  Folded = 1,
  Country = 2,
  Alone = 3,
}

export interface Place {
  country: number;
  longitude: number;
  latitude: number;
  lights: number;
  kind: Kind;
  busyTenths: number | null;
  ultraSeats: number;
  podMacs: number;
}

export interface Country {
  code: string;
  longitude: number;
  latitude: number;
  lights: number;
  isAtLeast: boolean;
  ultraSeats: number;
  memoryGib: number | null;
  busyTenths: number | null;
}

export interface Snapshot {
  at: number;
  totals: Totals;
  minutes: { jobs: Column; tokens: Column };
  countries: Country[];
  places: Place[];
}

const STEPS_PER_DEGREE = 10;

function sums(differences: number[]): number[] {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

export function decode(wire: Wire): Snapshot {
  const { countries, places } = wire;
  const at = (column: Column | number[], index: number): number => column[index] ?? 0;
  const [country, latitude, longitude] = [sums(places.country), sums(places.latitude), sums(places.longitude)];
  return {
    at: wire.at,
    totals: wire.totals,
    minutes: wire.minutes,
    countries: countries.code.map((code, index) => ({
      code,
      longitude: at(countries.longitude, index),
      latitude: at(countries.latitude, index),
      lights: at(countries.lights, index),
      isAtLeast: at(countries.at_least, index) === 1,
      ultraSeats: at(countries.ultra_seats, index),
      memoryGib: countries.memory_gib[index] ?? null,
      busyTenths: countries.busy_tenths[index] ?? null,
    })),
    places: places.lights.map((lights, index) => ({
      country: at(country, index),
      longitude: at(longitude, index) / STEPS_PER_DEGREE,
      latitude: at(latitude, index) / STEPS_PER_DEGREE,
      lights,
      kind: at(places.kind, index) as Kind,
      busyTenths: places.busy_tenths[index] ?? null,
      ultraSeats: at(places.ultra_seats, index),
      podMacs: at(places.pod_macs, index),
    })),
  };
}

// One fetch serves all islands; each new one is told to them as an event on the document.
export async function load(etag: string): Promise<void> {
  const answer = await fetch(`/world/v1/snapshot.json?v=${encodeURIComponent(etag)}`);
  if (!answer.ok) throw new Error(`snapshot: ${answer.status}`);
  const detail = decode((await answer.json()) as Wire);
  document.dispatchEvent(new CustomEvent<Snapshot>("world-snapshot", { detail }));
}

export function onSnapshot(take: (snapshot: Snapshot) => void): void {
  document.addEventListener("world-snapshot", (event) => take((event as CustomEvent<Snapshot>).detail));
}
