# Sent to the browser, too.
macs = { $count ->
    [one] { $count } Mac
   *[other] { $count } Macs
}
macs-area = { $count ->
    [one] { $count } Mac in this area
   *[other] { $count } Macs in this area
}
macs-country = { $count ->
    [one] { $count } Mac in this country, without an area
   *[other] { $count } Macs in this country, without an area
}
at-least-one = At least one Mac
at-least = at least { $count }
share-working = { $share } working
ultra-count = { $count ->
    [one] { $count } Ultra seat
   *[other] { $count } Ultra seats
}
pod-count = { $count ->
    [one] { $count } Mac in pods
   *[other] { $count } Macs in pods
}
stars = { $count ->
    [one] { $count } Mac somewhere on Earth
   *[other] { $count } Macs somewhere on Earth
}
globe-label = Globe with { $lights } lights, one for each Mac. The table of countries tells the same.
flat-label = Flat map with { $lights } lights, one for each Mac. The table of countries tells the same.
zoom-in = Zoom in
zoom-out = Zoom out
show-flat = Flat map
show-globe = Globe
reset-view = Whole Earth
live-on = Live
live-off = Not live: this picture is from earlier
not-told = –
measure = { $value } { $unit }
minutes-summary = Now { $now }, peak { $peak }
