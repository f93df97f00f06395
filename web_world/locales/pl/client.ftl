macs = { $count ->
    [one] { $count } Mac
    [few] { $count } Maki
    [many] { $count } Maców
   *[other] { $count } Maca
}
macs-area = { $count ->
    [one] { $count } Mac w tym obszarze
    [few] { $count } Maki w tym obszarze
    [many] { $count } Maców w tym obszarze
   *[other] { $count } Maca w tym obszarze
}
macs-country = { $count ->
    [one] { $count } Mac w tym kraju, bez obszaru
    [few] { $count } Maki w tym kraju, bez obszaru
    [many] { $count } Maców w tym kraju, bez obszaru
   *[other] { $count } Maca w tym kraju, bez obszaru
}
at-least-one = Co najmniej jeden Mac
at-least = co najmniej { $count }
share-working = pracuje { $share }
ultra-count = { $count ->
    [one] { $count } miejsce Ultra
    [few] { $count } miejsca Ultra
    [many] { $count } miejsc Ultra
   *[other] { $count } miejsca Ultra
}
pod-count = { $count ->
    [one] { $count } Mac w zespołach
    [few] { $count } Maki w zespołach
    [many] { $count } Maców w zespołach
   *[other] { $count } Maca w zespołach
}
stars = { $count ->
    [one] { $count } Mac gdzieś na Ziemi
    [few] { $count } Maki gdzieś na Ziemi
    [many] { $count } Maców gdzieś na Ziemi
   *[other] { $count } Maca gdzieś na Ziemi
}
globe-label = Globus ze światełkami ({ $lights }), po jednym na każdego Maca. To samo mówi tabela krajów.
flat-label = Płaska mapa ze światełkami ({ $lights }), po jednym na każdego Maca. To samo mówi tabela krajów.
zoom-in = Przybliż
zoom-out = Oddal
show-flat = Płaska mapa
show-globe = Globus
reset-view = Cała Ziemia
live-on = Na żywo
live-off = Bez połączenia: obraz sprzed chwili
not-told = –
measure = { $value } { $unit }
minutes-summary = Teraz { $now }, szczyt { $peak }
