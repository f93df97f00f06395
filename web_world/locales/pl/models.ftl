nav-models = Modele
models-page-title = Modele i popyt według klasy Maca · Świat MLX
models-heading = Modele i popyt
models-lead = Jakie modele tu działają i na których Macach, jak szybkie powinny być, ile kosztują oraz ile od nich zamówiono i opłacono.
models-served-title = Udostępniane teraz
models-none = Ta sieć nie udostępnia jeszcze żadnego modelu.
models-model = Model
models-size = wagi: { $size }
models-least = Najmniejszy Mac
models-macs = Maki gotowe teraz, co najmniej
models-day = Opłacone tokeny, ostatnia doba
models-month = Opłacone tokeny, trzydzieści dni
models-demand-note = Liczbę podaje się, gdy kryje się za nią pięć różnych osób, a odnawia, najwyżej co godzinę, gdy pięć z nich się zmieniło. Tokeny są zaokrąglone w dół; dni z mniej niż pięcioma wysyłającymi pominięto. Kreska znaczy: nie podajemy. Praca dla siebie i praca publiczna nie są popytem.
models-too-large = Żaden
models-classes-title = Co może udostępniać każda klasa Maców
models-memory = Pamięć
models-fitting = Pasujące modele
models-largest = Największy z nich
models-earned = MLX na Maca, trzydzieści dni
models-classes-note = Policzone dla całego katalogu, przy { $tokens } tokenach promptu i odpowiedzi razem i takiej pamięci, jaką macOS pozwala zająć modelowi.
models-earned-note = Tyle średnio zarobił Mac tej klasy na rozliczonej pracy dla innych; te bez pracy też się liczą. MLX to kredyty na usługi tej sieci i nie da się ich wypłacić.
models-earned-none = Nie można jeszcze podać zarobków: w żadnej klasie pięciu właścicieli nie dostało w ostatnich trzydziestu dniach zapłaty za rozliczoną pracę. Dlatego nie ma tam liczby.
models-calculator = Kupić, użyczać czy zlecać? Kalkulator
models-speeds-title = Szybkość i cena
models-speeds-note = Tokeny odpowiedzi na sekundę, według prognozy. Połowa prognoz myli się najwyżej o { $half }, dziewięć na dziesięć najwyżej o { $most }. Ceny to MLX za milion tokenów.
models-price-read = MLX, czytane
models-price-written = MLX, pisane
models-known-title = Znane, jeszcze nieudostępniane
models-known-text = Ich rozmiary i ceny są ustalone. Udostępnimy je, gdy ich pliki zostaną przypięte odciskiem.
models-from = Od { $memory }
models-too-large-title = Za duże dla każdego pojedynczego Maca
models-count = { $count ->
    [one] { $count } model
    [few] { $count } modele
    [many] { $count } modeli
   *[other] { $count } modelu
}
