import { Countries } from "./countries";
import { Globe } from "./globe";
import { Live } from "./live";

customElements.define("mlx-globe", Globe);
customElements.define("mlx-countries", Countries);
customElements.define("mlx-live", Live);
