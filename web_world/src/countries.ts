// The table of countries: kept up to date, sortable, and a way to fly to a country.
import { onSnapshot, type Country, type Snapshot } from "./snapshot";
import { countryName, memory, number, tenths, text } from "./texts";

type Column = 0 | 1 | 2 | 3 | 4;

const VALUES: ((country: Country) => number | string)[] = [
  (country) => countryName(country.code),
  (country) => country.lights,
  (country) => country.busyTenths ?? -1,
  (country) => country.ultraSeats,
  (country) => country.memoryGib ?? -1,
];
const collator = new Intl.Collator(document.documentElement.lang);

export class Countries extends HTMLElement {
  #sorted: Column = 1;
  #isDown = true;
  #snapshot: Snapshot | undefined;

  connectedCallback(): void {
    this.querySelectorAll<HTMLElement>("thead th").forEach((heading, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => this.#sortBy(index as Column));
    });
    this.#mark();
    onSnapshot((snapshot) => {
      this.#snapshot = snapshot;
      this.#fill();
    });
    this.addEventListener("click", (event) => {
      const row = (event.target as Element).closest<HTMLElement>("button[data-code]");
      const country = this.#snapshot?.countries.find(({ code }) => code === row?.dataset.code);
      if (country) document.dispatchEvent(new CustomEvent<Country>("world-visit", { detail: country }));
    });
  }

  #sortBy(column: Column): void {
    this.#isDown = column === this.#sorted ? !this.#isDown : column > 0;
    this.#sorted = column;
    this.#mark();
    this.#fill();
  }

  #mark(): void {
    this.querySelectorAll("thead th").forEach((heading, index) => {
      if (index === this.#sorted) heading.setAttribute("aria-sort", this.#isDown ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
  }

  #fill(): void {
    const body = this.querySelector("tbody");
    if (!this.#snapshot || !body) return;
    const value = VALUES[this.#sorted]!;
    const sign = this.#isDown ? -1 : 1;
    const rows = [...this.#snapshot.countries].sort((one, other) => {
      const [first, second] = [value(one), value(other)];
      const order =
        typeof first === "string" ? collator.compare(first, String(second)) : first - Number(second);
      return sign * order || other.lights - one.lights;
    });
    body.replaceChildren(...rows.map(row));
    const { stars, macs_seen } = this.#snapshot.totals;
    const [starsCell, totalCell] = this.querySelectorAll("tfoot bdi");
    if (starsCell) starsCell.textContent = number(stars);
    if (totalCell) totalCell.textContent = number(macs_seen);
    this.querySelector<HTMLElement>("tfoot tr")!.dataset.lights = String(stars);
  }
}

function row(country: Country): HTMLTableRowElement {
  const made = document.createElement("tr");
  made.dataset.code = country.code;
  made.dataset.lights = String(country.lights);
  const heading = document.createElement("th");
  heading.scope = "row";
  const visit = document.createElement("button");
  visit.type = "button";
  visit.dataset.code = country.code;
  visit.append(isolated(countryName(country.code)));
  heading.append(visit);
  const told = (shown: string | null): HTMLTableCellElement => {
    const cell = document.createElement("td");
    cell.className = "number";
    cell.append(shown === null ? text("not-told") : isolated(shown));
    return cell;
  };
  const lights = told(number(country.lights));
  if (country.isAtLeast) lights.textContent = text("at-least", { count: number(country.lights) });
  made.append(
    heading,
    lights,
    told(country.busyTenths === null ? null : tenths(country.busyTenths)),
    told(country.ultraSeats ? number(country.ultraSeats) : null),
    told(country.memoryGib === null ? null : memory(country.memoryGib)),
  );
  return made;
}

function isolated(shown: string): HTMLElement {
  const made = document.createElement("bdi");
  made.textContent = shown;
  return made;
}
