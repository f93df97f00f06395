nav-models = Models
models-page-title = Models and demand, by class of Mac · MLX World
models-heading = Models and demand
models-lead = Which models run here and on which Macs, how fast they should be, what they cost, and how much people asked of them and paid for.
models-served-title = Served now
models-none = This network serves no model yet.
models-model = Model
models-size = { $size } of weights
models-least = Smallest Mac
models-macs = Macs that can take it now, at least
models-day = Tokens paid for, last day
models-month = Tokens paid for, thirty days
models-demand-note = A figure is shown once at least five different people are part of it, and renewed, hourly at most, when five of them have changed. Tokens are rounded down; days with fewer than five senders are left out. A dash means: not shown. Work for oneself and public work do not count as demand.
models-too-large = None
models-classes-title = What each class of Mac could serve
models-memory = Memory
models-fitting = Models that fit
models-largest = The largest of them
models-earned = MLX per Mac, thirty days
models-classes-note = Counted over the whole catalogue, for prompt and answer of { $tokens } tokens together, with as much memory as macOS lets a model use.
models-earned-note = What a Mac of this class earned on average from settled work of others; those without work are counted in. MLX are credits for services of this network and cannot be withdrawn.
models-earned-none = No earnings can be shown yet: in no class have five owners been paid for settled work in the last thirty days.
models-calculator = Buy, lend or send? The calculator
models-speeds-title = Speed and price
models-speeds-note = Tokens of an answer per second, by forecast. Half of the forecasts are off by no more than { $half }, nine in ten by no more than { $most }. Prices are MLX per million tokens.
models-price-read = MLX, read
models-price-written = MLX, written
models-known-title = Known, not served yet
models-known-text = Their sizes and prices are settled. They are served once their files are pinned by fingerprint.
models-from = From { $memory }
models-too-large-title = Too large for any one Mac
models-count = { $count ->
    [one] { $count } model
   *[other] { $count } models
}
