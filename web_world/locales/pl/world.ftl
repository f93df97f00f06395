site-name = Świat MLX
world-title = Świat MLX: każdy Mac w sieci to światełko
world-description = Żywy globus Maców, które użyczają pamięci i szybkości otwartym modelom. Każde światełko to Mac; żadne nie zdradza, gdzie kto mieszka.
share-alt = Globus ze światełkiem dla każdego Maca w sieci
nav-label = Strony
menu-button = Menu
nav-world = Świat
skip-to-table = Przejdź do tabeli krajów
languages-label = Język
lend-button = Użycz Maca

headline = { $count ->
    [one] Mac w sieci
    [few] Maki w sieci
    [many] Maców w sieci
   *[other] Maca w sieci
}
headline-note = widziane w ciągu ostatniej doby
every-mac = Każdy Mac to światełko.
intro = Zwykłe Maki, użyczone przez właścicieli, uruchamiają otwarte modele AI dla ludzi, którzy zlecają im pracę. Każda odpowiedź powstaje w całości na jednym Macu.
figure-working = Pracuje teraz
figure-memory = Pamięć
figure-bandwidth = Przepustowość pamięci
figure-ultra = Miejsca Ultra
figure-pods = Zespoły
figure-measured = Zmierzone
figure-attested = Poświadczone
figure-countries = Kraje
figures-withheld = Pozostałe liczby podamy, gdy użyczać będzie pięć osób: wcześniej zdradziłyby, co gdzie stoi.
figures-note = „Zmierzone” Maki przeszły nasz własny test szybkości. Tożsamość „poświadczonych” potwierdził producent. Pozostałe same podają swoje dane.

minutes-title = Ostatnie trzydzieści minut
minutes-jobs = Zadania na minutę
minutes-tokens = Tokeny na minutę
minutes-none = W tych minutach jeszcze nic nie widziano.

countries-title = Kraje
countries-caption = Maki według krajów, tak jak na globusie
column-country = Kraj
column-macs = Maki
column-working = Pracuje
column-ultra = Miejsca Ultra
column-memory = Pamięć
row-stars = Gdzieś na Ziemi
row-total = Razem
countries-none = Żaden Mac nie pokazuje jeszcze kraju. Twój może być pierwszy.
sort-by = Sortuj według: { $column }

legend-title = Jak czytać tę mapę
legend-mac = Światełko: jeden Mac albo wiele blisko siebie. Z bliska każdy Mac jest osobną kropką.
legend-area = Okrąg to obszar, w którym użycza co najmniej pięć osób. Kropki są w nim tylko rozłożone; nikt nie stoi tam, gdzie one.
legend-busy = Łuk wokół okręgu: jaka część Maców teraz pracuje.
legend-ultra = Romb: miejsce Ultra.
legend-pod = Kwadrat: Mac w zespole, czyli wśród kilku połączonych kablami.
legend-alone = Przerywany okrąg: kraj, w którym jest co najmniej jeden Mac. Ile ich jest, tego nie zdradza.
legend-star = Gwiazda: Mac, który nie pokazuje miejsca.
legend-night = Po zacienionej stronie Ziemi jest noc.
legend-spark = Rozchodzący się okrąg: praca w sieci. Gdzie rozbłyśnie, o tym wśród światełek decyduje los.

privacy-title = Dlaczego nikogo tu nie można znaleźć
privacy-chosen = Mac ma takie miejsce, jakie wybrał właściciel: żadne, kraj albo obszar około { $area } km². Niczego nie zgadujemy z adresów, a dokładne miejsce nigdy nie opuszcza Maca.
privacy-five = Liczba widnieje tylko tam, gdzie użycza co najmniej pięć osób. Mniejsze grupy łączą się w większy obszar, a potem w kraj.
privacy-slow = Miejsca zmieniają się raz na godzinę, u wszystkich naraz, a ile z nich pracuje, mówimy tylko tam, gdzie użycza co najmniej dziesięć osób.
privacy-withdraw = Kto wycofa swoje miejsce, znika z mapy w ciągu godziny.

lend-title = Użycz Maca
lend-text = Dwie linijki w Terminalu. To Ty wybierasz, co pokaże mapa, i widzisz to, zanim zobaczą inni.
lend-note = Wpisz je w folderze z kodem MLX Network. Mac użycza od startu do zatrzymania, czy przy nim jesteś, czy nie.

checkpoint-text = Księga: { $entries ->
    [one] { $entries } wpis
    [few] { $entries } wpisy
    [many] { $entries } wpisów
   *[other] { $entries } wpisu
}, podpisano { $time }
checkpoint-none = Księga: nie podpisano jeszcze stanu
data-link = To samo jako dane
footer-credits = Tokeny MLX to kredyty na usługi: nie są walutą i nie można ich wypłacić. Projekt nie jest związany z Apple ani z projektem MLX. Zarys lądów: Natural Earth. Tłumaczenia nie sprawdził jeszcze nikt, dla kogo polski jest językiem ojczystym.
no-script = Bez JavaScriptu nie ma globusa; tabela mówi to samo.
