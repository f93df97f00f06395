site-name = MLX World
world-title = MLX World: every Mac on the network is a light
world-description = A live globe of the Macs that lend their memory and speed to open models. Every light is a Mac; none tells where anybody lives.
share-alt = A globe with a light for each Mac on the network
nav-label = Pages
menu-button = Menu
nav-world = World
skip-to-table = Skip to the table of countries
languages-label = Language
lend-button = Lend your Mac

headline = { $count ->
    [one] Mac on the network
   *[other] Macs on the network
}
headline-note = seen in the last day
every-mac = Every Mac is a light.
intro = Ordinary Macs, lent by their owners, run open AI models for people who send them work. Each answer is made whole, on one Mac.
figure-working = Working now
figure-memory = Memory
figure-bandwidth = Memory bandwidth
figure-ultra = Ultra seats
figure-pods = Pods
figure-measured = Measured
figure-attested = Attested
figure-countries = Countries
figures-withheld = Other figures appear once five owners lend: before that they would reveal what stands where.
figures-note = “Measured” Macs have passed our own speed test. “Attested” ones have had their identity confirmed by the maker. The rest describe themselves.

minutes-title = Last thirty minutes
minutes-jobs = Jobs a minute
minutes-tokens = Tokens a minute
minutes-none = Nothing seen yet in these minutes.

countries-title = Countries
countries-caption = Macs by country, as on the globe
column-country = Country
column-macs = Macs
column-working = Working
column-ultra = Ultra seats
column-memory = Memory
row-stars = Somewhere on Earth
row-total = Total
countries-none = No Mac shows a country yet. Be the first in yours.
sort-by = Sort by { $column }

legend-title = How to read this map
legend-mac = A light: one Mac, or many close together. Nearer, every Mac is a dot of its own.
legend-area = A ring holds one area with at least five owners. Dots inside are only laid out there; nobody stands where they are.
legend-busy = The arc round a ring: the share of Macs working now.
legend-ultra = A diamond: an Ultra seat.
legend-pod = A square: a Mac in a pod, several cabled together.
legend-alone = A dashed ring: a country with at least one Mac. How many, it does not tell.
legend-star = A star: a Mac that shows no place.
legend-night = The shaded side of the Earth has night.
legend-spark = A widening circle: work on the network. Where it shines is drawn by lot among the lights.

privacy-title = Why nobody can be found here
privacy-chosen = A Mac has the place its owner chose: none, the country, or an area of about { $area } km². Nothing is guessed from addresses, and the exact spot never leaves the Mac.
privacy-five = A number is shown only where at least five people lend. Smaller groups join a larger area, then their country.
privacy-slow = Places change once an hour, for everybody at once, and how many work is shown only where at least ten people lend.
privacy-withdraw = Whoever withdraws their place is gone from the map within the hour.

lend-title = Lend your Mac
lend-text = Two lines in the Terminal. You choose what the map shows, and see it before anybody else does.
lend-note = Run them in a checkout of MLX Network. The Mac lends from start to stop, whether you are at it or not.

checkpoint-text = Ledger: { $entries ->
    [one] { $entries } entry
   *[other] { $entries } entries
}, signed { $time }
checkpoint-none = Ledger: no checkpoint signed yet
data-link = The same as data
footer-credits = MLX tokens are service credits: no currency, not withdrawable. This project is not affiliated with Apple or the MLX project. Land: Natural Earth. Native speakers have not reviewed the translations yet.
no-script = Without JavaScript there is no globe; the table tells the same.
