// Keeps the figures and charts of the page up to date; without it they stand as they were sent.
import { load, onSnapshot, type Snapshot } from "./snapshot";
import { bandwidth, config, memory, number, short, text } from "./texts";

const RETRY_MS = 15_000;
const CHART_HEIGHT = 100;

interface Tick {
  working: number | null;
  jobs: number | null;
  tokens: number | null;
}

export class Live extends HTMLElement {
  #source: EventSource | undefined;
  #retry: number | undefined;
  #etag = config.etag;

  connectedCallback(): void {
    onSnapshot((snapshot) => this.#show(snapshot));
    document.addEventListener("visibilitychange", () => this.#follow());
    load(this.#etag).catch(() => this.#stale());
    this.#follow();
  }

  // A page that nobody sees holds no connection.
  #follow(): void {
    this.#source?.close();
    this.#source = undefined;
    if (document.hidden) return;
    const source = new EventSource("/world/v1/events");
    this.#source = source;
    source.onopen = () => this.#status("live-on", true);
    source.onerror = () => this.#stale();
    source.addEventListener("snapshot", (event) => {
      const { etag } = JSON.parse(event.data) as { etag: string };
      if (etag === this.#etag) return;
      this.#etag = etag;
      load(etag).catch(() => this.#stale());
    });
    source.addEventListener("totals", (event) => this.#tick(JSON.parse(event.data) as Tick));
  }

  #stale(): void {
    this.#status("live-off", false);
    if (this.#source?.readyState !== EventSource.CLOSED || this.#retry) return;
    this.#retry = window.setTimeout(() => {
      this.#retry = undefined;
      this.#follow();
    }, RETRY_MS);
  }

  #status(key: string, isLive: boolean): void {
    const status = document.getElementById("live-status");
    if (!status) return;
    status.hidden = false;
    status.classList.toggle("is-live", isLive);
    const words = text(key);
    if (status.textContent !== words) status.textContent = words;
  }

  #tick(tick: Tick): void {
    if (tick.working !== null) this.#figure("working", number(tick.working));
    document.dispatchEvent(new CustomEvent<number>("world-work", { detail: tick.jobs ?? 0 }));
  }

  #show(snapshot: Snapshot): void {
    const { totals } = snapshot;
    const told = (value: number | null | undefined, format: (value: number) => string, id: string): void => {
      if (value !== null && value !== undefined) this.#figure(id, format(value));
    };
    told(totals.working, number, "working");
    told(totals.memory_gib, memory, "memory");
    told(totals.bandwidth_gb_per_second, bandwidth, "bandwidth");
    // None told is not none there.
    const rare = (value: number): string => (value ? number(value) : text("not-told"));
    told(totals.ultra_seats, rare, "ultra");
    told(totals.pods, rare, "pods");
    told(totals.measured, number, "measured");
    told(totals.attested, number, "attested");
    told(snapshot.countries.length, number, "countries");
    const headline = document.querySelector(".headline .count bdi");
    if (headline) headline.textContent = number(totals.macs_seen);
    this.#chart("jobs", snapshot.minutes.jobs);
    this.#chart("tokens", snapshot.minutes.tokens);
  }

  #figure(id: string, shown: string): void {
    const value = document.querySelector(`#figure-${id} bdi`);
    if (value && value.textContent !== shown) value.textContent = shown;
  }

  #chart(id: string, values: (number | null)[]): void {
    const bars = this.querySelectorAll(`#chart-${id} rect`);
    const seen = values.filter((value) => value !== null);
    const peak = Math.max(1, ...seen);
    bars.forEach((bar, index) => {
      const height = (CHART_HEIGHT * (values[index] ?? 0)) / peak;
      bar.setAttribute("height", String(height));
      bar.setAttribute("y", String(CHART_HEIGHT - height));
    });
    const summary = this.querySelector(`#chart-${id} [data-summary]`);
    const now = seen.at(-1);
    if (summary && now !== undefined) {
      summary.textContent = text("minutes-summary", { now: short(now), peak: short(Math.max(...seen)) });
    }
  }
}
